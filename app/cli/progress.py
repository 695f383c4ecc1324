"""How far a calculation is: one line on stderr that a person sees change; silence for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from allpass.cli.screen import is_interactive

EVERY_S = 0.2


class ProgressLine:
    """Called with how many are done (a fraction for what is under way) and of how many."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began_s = self._shown_s = time.monotonic()
        self._width = 0

    def __call__(self, done: float, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < EVERY_S:
            return
        self._shown_s = now_s
        spent_s = now_s - self._began_s
        left = f", about {_time(spent_s / done * (total - done))} left" if done > 0 else ""
        rate = (
            f", {done / spent_s:.1f} a second" if done >= spent_s else f", {_time(spent_s / done)} each" if done else ""
        )
        self._show(f"{int(done)} of {total} {self._what} ({done / total:.0%}){rate}{left}")

    def clear(self) -> None:
        """Takes the line away."""
        if self._width:
            self._show("")
            typer.echo("\r", err=True, nl=False)

    def _show(self, text: str) -> None:
        typer.echo(f"\r{text.ljust(self._width)}", err=True, nl=False)
        self._width = len(text)


@contextmanager
def progress_line(what: str) -> Iterator[ProgressLine | None]:
    """A line while the block runs; None where nobody watches stderr."""
    if not is_interactive(sys.stderr):
        yield None
        return
    line = ProgressLine(what)
    try:
        yield line
    finally:
        line.clear()


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
