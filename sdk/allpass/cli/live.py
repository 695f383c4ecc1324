"""A screen that is drawn again and again, until Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable

from allpass.cli import screen
from allpass.cli.faults import WRONG_USAGE, CommandFailed

_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


class _Frame(io.StringIO):
    """What is drawn, for the person who will see it."""

    def isatty(self) -> bool:
        return True


def redraw(draw: Callable[[], None], every_s: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Call `draw` every so often, and show what it writes in the place of what it wrote before. A server that cannot be
    reached is told in the frame, and asked again."""
    from allpass.errors import ConnectionFailed

    if not screen.is_interactive():
        raise CommandFailed("a live screen needs a terminal", hint="--json, or without it", code=WRONG_USAGE)
    out = sys.stdout
    out.write(_OTHER_SCREEN)
    try:
        while True:
            frame = _Frame()
            with contextlib.redirect_stdout(frame):
                try:
                    draw()
                except ConnectionFailed as error:
                    frame.write(f"{error}\n")
            out.write(_HOME + _fitting(frame.getvalue()) + _REST)
            out.flush()
            sleep(every_s)
    finally:
        out.write(_BACK)
        out.flush()


def _fitting(text: str) -> str:
    """As many lines as the terminal has; the last one says that there are more."""
    import shutil

    most = max(2, shutil.get_terminal_size().lines - 1)
    lines = text.splitlines()
    if len(lines) > most:
        lines = [*lines[: most - 1], f"... {len(lines) - most + 1} more lines"]
    return "".join(f"{line}{_REST_OF_LINE}\n" for line in lines)
