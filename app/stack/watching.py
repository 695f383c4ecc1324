"""Keeps the parts of a stack running: whichever ends by itself is started again, however often that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.stack.comeback import Comeback


class StackProcess(Protocol):
    """A process of the stack."""

    @property
    def name(self) -> str: ...

    def alive(self) -> bool: ...

    def restart(self) -> None:
        """Start it again, and return at once. May raise anything."""
        ...

    def how_it_ended(self) -> str: ...


class Watch:
    """`tell` gets one line for each try."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._comebacks: dict[str, Comeback] = {}
        self._refusals: dict[str, str] = {}  # by part: why it could not even be started

    def look_at(self, part: StackProcess) -> bool:
        """Whether it runs. One that has ended is started again when its pause is over."""
        comeback = self._comebacks.setdefault(part.name, Comeback())
        if part.alive():
            comeback.lives()
            return True
        pause_s = comeback.ended()
        if pause_s is not None:
            why = self._refusals.pop(part.name, "") or f"it has ended: {part.how_it_ended()}"
            when = f"tried again in {pause_s:.0f} s" if pause_s else "started again"
            self._tell(f"{part.name} is {when} ({why})")
        if comeback.is_due():
            comeback.tried()
            self._start(part)
        return part.alive()

    def _start(self, part: StackProcess) -> None:
        try:
            part.restart()
        except Exception as error:  # the outermost frame: whatever it is, it may be over when it is tried again
            self._refusals[part.name] = f"it cannot be started: {error}"
