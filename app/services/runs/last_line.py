"""How a process ended, with the line that says why."""

from __future__ import annotations

from app.db.text import storable_text

_LINE_CHARS = 300


def with_last_line(message: str, last_lines: str) -> str:
    """The end of a traceback names the error: it is what a user wants to see first."""
    lines = [line.strip() for line in storable_text(last_lines).splitlines() if line.strip()]
    return f"{message}: {lines[-1][:_LINE_CHARS]}" if lines else message
