"""Deadlines that hold, whatever the call does about being cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_LEAST_S = 0.01
_LAST_WAIT_S = 1.0


class Late(Exception):
    """No answer within the time we give."""


class Deadline:
    """A moment until which there is time."""

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._seconds = seconds

    def share(self, part: float) -> Deadline:
        """An earlier moment: after this part of the time."""
        sooner = Deadline(self._seconds * part)
        sooner._began = self._began
        return sooner

    @property
    def left_s(self) -> float:
        """How long there is still time; never nothing at all."""
        return max(_LEAST_S, self._began + self._seconds - time.monotonic())


class OverdueCalls:
    """Runs calls that may not end when they are cancelled, and keeps those that do not until the end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def within(self, deadline: Deadline, call: Coroutine[Any, Any, T]) -> T:
        """The call's answer. Raises Late when there is none in time: the call is cancelled, and not waited for."""
        task = asyncio.get_running_loop().create_task(call)
        try:
            done, _ = await asyncio.wait({task}, timeout=deadline.left_s)
        except asyncio.CancelledError:
            self._leave(task)
            raise
        if not done:
            self._leave(task)
            raise Late
        return task.result()

    async def end(self) -> None:
        """Wait a little for what is left; what still does not end is forgotten."""
        if self._running:
            await asyncio.wait(self._running, timeout=_LAST_WAIT_S)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._running.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # nobody else looks at it any more
