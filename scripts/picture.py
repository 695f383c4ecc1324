"""Writes docs/demo.svg, the picture of the README: from the run that docs/guides/demo.md keeps word for word.

    .venv/bin/python scripts/picture.py

Shown are the lines of the job that moves, and all that follows. A test compares the committed file with what this
makes. It has a dark window of its own, so it looks the same on a light page and on a dark one, and it loads nothing.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURE = DOCS / "demo.svg"
_COMMAND = "./allpass demo --providers emulated"
_COLUMNS = 120
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_COLOURS = {
    r"^\$ .*": "bold",
    r"^\d\d:\d\d:\d\d": "dim",
    r"^JOB .*": "dim",
    r"^yes|\bsucceeded\b": "green",
    r"\bfailed: \w+": "red",
    r"moved at step \d+.*": "bold",
}


def picture() -> str:
    """The SVG's text."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(_coloured(f"$ {_COMMAND}"))
    for line in shown((DOCS / "guides" / "demo.md").read_text()):
        console.print(_coloured(line), no_wrap=True, crop=True)
    text = console.export_svg(
        title="", theme=MONOKAI, unique_id="demo", code_format=_without_fonts(CONSOLE_SVG_FORMAT), font_aspect_ratio=0.6
    )
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def shown(guide: str) -> list[str]:
    """The lines of the kept run that the picture has: a job's events may go on in lines that begin with a space."""
    _, _, run = guide.partition("\n```\nStarting ")
    lines, is_shown = [], False
    for line in run.partition("\n```\n")[0].splitlines():
        if line.startswith("JOB "):
            is_shown = True
        elif re.match(r"\d\d:", line):
            is_shown = "long-lora" in line
        if is_shown:
            lines.append(line)
    return lines


def _coloured(line: str) -> Text:
    text = Text(line)
    for pattern, style in _COLOURS.items():
        text.highlight_regex(pattern, style)
    return text


def _without_fonts(code_format: str) -> str:
    """Those of the reader's machine: a picture on a page may fetch nothing."""
    local = re.sub(r"@font-face \{\{.*?\}\}\s*", "", code_format, flags=re.DOTALL)
    return local.replace("Fira Code, monospace", _FONTS)


if __name__ == "__main__":
    PICTURE.write_text(picture())
