"""How far a transfer is, for the person at the terminal: a bar with rate and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from allpass.cli import screen

if TYPE_CHECKING:
    from collections.abc import Callable

    from allpass.client import Client

_LEAST_BYTES = 4 << 20
_LEAST_S = 0.5  # what is through by then needs no bar


@contextmanager
def told(client: Client, what: str) -> Iterator[None]:
    """Transfers of this client have a bar meanwhile, on stderr and only on a terminal; it is gone afterwards."""
    if not screen.is_interactive(sys.stderr):
        yield
        return
    bar = Bar(what)
    client.transfer = bar
    try:
        yield
    finally:
        client.transfer = None
        bar.close()


class Bar:
    """Comes once a transfer turns out to be large and to take a while."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._clock = what, clock
        self._total_bytes = self._moved_bytes = 0
        self._began = clock()
        self._shown: Any = None
        self._task: Any = None

    def begin(self, total_bytes: int) -> None:
        self._total_bytes, self._moved_bytes, self._began = total_bytes, 0, self._clock()
        if self._shown is not None:
            self._shown.update(self._task, total=total_bytes, completed=0)

    def moved(self, count_bytes: int) -> None:
        self._moved_bytes += count_bytes
        slow = self._clock() - self._began >= _LEAST_S
        if self._shown is None and self._total_bytes >= _LEAST_BYTES and slow:
            self._show()
        if self._shown is not None:
            self._shown.update(self._task, completed=self._moved_bytes)

    def close(self) -> None:
        if self._shown is not None:
            self._shown.stop()
            self._shown = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        self._shown = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            DownloadColumn(),
            Speed(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._shown.add_task(self._what, total=self._total_bytes)
        self._shown.start()
