"""A process that dies at a chosen step. A step is one suspension of a coroutine that runs in it.

The coroutines of the service are driven by hand, `send` by `send`. They suspend where they wait for the database, a
provider or each other, so between two suspensions nothing reaches the outside but the one message that the second
waits to be answered. Dying at a suspension is therefore dying with that message sent and its answer unread; dying at
the one before is dying with it unsent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
_inside: ContextVar[Process | None] = ContextVar("_inside", default=None)


class KilledError(asyncio.CancelledError):
    """What a coroutine of a dead process is unwound with. Nothing it does on the way out reaches the outside."""


class Crashed(Exception):  # what a caller sees: the connection to the server broke
    """The process died before it answered."""


class Lines:
    """The connections of one engine, which the processes of a world use one after the other."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._open: list[asyncpg.Connection] = []
        event.listen(engine.sync_engine, "do_connect", _refuse_the_dead)
        event.listen(engine.sync_engine, "connect", self._opened)

    def cut(self) -> list[int]:
        """Break them all, as the kernel does for a process that is gone. Returns the backends at the other end."""
        backends = []
        for connection in self._open:
            if not connection.is_closed():
                backends.append(connection.get_server_pid())
                connection.terminate()
        self._open.clear()
        return backends

    def _opened(self, adapted: Any, _record: object) -> None:
        self._open.append(adapted.driver_connection)


class Process:
    """Runs coroutines until one of them reaches step `dies_after` (None: lives on). `witness` is awaited after each
    step, outside of the process, with its number."""

    def __init__(
        self,
        lines: Lines,
        *,
        dies_after: int | None = None,
        witness: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self.dies_after = dies_after
        self.steps = 0
        self.dead = False
        self.backends: list[int] = []
        self.died_in = ""
        self._lines = lines
        self._witness = witness
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work` and of all that it leaves running. Raises Crashed when the process died meanwhile."""
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        loop.set_task_factory(_task_factory)
        token = _inside.set(self)
        try:
            task = asyncio.create_task(work)
        finally:
            _inside.reset(token)
        try:
            await asyncio.wait([task])
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            loop.set_task_factory(before)
        if self.dead:
            if not task.cancelled():
                task.exception()  # whatever it was: nobody was told
            raise Crashed
        return task.result()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._begun.discard)

    def suspended(self, work: Coroutine[Any, Any, Any]) -> None:
        """`work` made a step. Count it, and die when it was the last."""
        if self.dead:
            return
        self.steps += 1
        if self.steps == self.dies_after:
            self.dead = True
            self.died_in = _place(work)
            self.backends = self._lines.cut()
            current = asyncio.current_task()
            for task in self._begun & self._tasks:
                if task is not current:
                    task.cancel()

    def drive(self, work: Coroutine[Any, Any, T]) -> _Driven[T]:
        """For the task that now begins."""
        task = asyncio.current_task()
        assert task is not None
        self._begun.add(task)
        return _Driven(self, work)

    async def witnessed(self) -> None:
        if self._witness is not None:
            await self._witness(self.steps)


class _Driven(Awaitable[T]):
    """What has not begun when the process dies still begins: the closing of a connection, say, whose owner is unwound.
    It gets no further than its first suspension, and nothing that it calls answers."""

    def __init__(self, process: Process, work: Coroutine[Any, Any, T]) -> None:
        self._process = process
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        process, work = self._process, self._work
        begun = unwound = False
        thrown: BaseException | None = None
        while True:
            if process.dead and begun and not unwound:
                unwound, thrown = True, KilledError()
            try:
                waits_for = work.send(None) if thrown is None else work.throw(thrown)
            except StopIteration as done:
                result: T = done.value
                return result
            begun, thrown = True, None
            alive = not process.dead
            process.suspended(work)
            if process.dead and not unwound:
                _take_back(waits_for)
                continue
            try:
                yield waits_for
            except BaseException as error:  # handed on, not caught
                thrown = error
            if alive and not process.dead:
                yield from process.witnessed().__await__()


def _place(work: Any) -> str:
    """What the coroutine is, and the innermost line of the service that it waits in."""
    place, inner = "", work
    while getattr(inner, "cr_frame", None) is not None or getattr(inner, "ag_frame", None) is not None:
        frame = getattr(inner, "cr_frame", None) or inner.ag_frame
        if "/app/" in frame.f_code.co_filename:
            place = f"app/{frame.f_code.co_filename.rpartition('/app/')[2]}:{frame.f_lineno}"
        inner = getattr(inner, "cr_await", None)
    return f"{work.__qualname__} {place}".rstrip()


def _take_back(waits_for: Any) -> None:
    """A future that was handed out to be waited for, and is not: cancelled, as by a task that is cancelled."""
    if waits_for is not None:
        waits_for._asyncio_future_blocking = False
        if not waits_for.cancel():
            waits_for.add_done_callback(_unheard)


def _unheard(answer: asyncio.Future[Any]) -> None:
    """Nobody is left to hear it, and that is no mistake worth a line in the log."""
    if not answer.cancelled():
        answer.exception()


def _task_factory(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
    """Tasks that the code of a process starts belong to it."""
    process = _inside.get()
    if process is None:
        return asyncio.Task(work, loop=loop, **options)

    async def driven() -> T:
        return await process.drive(work)

    task = asyncio.Task(driven(), loop=loop, **options)
    task.add_done_callback(lambda _: work.close())  # cancelled before it began, it was never driven
    process.adopt(task)
    return task


def still_alive() -> None:
    """Raises KilledError in what is left of a dead process: it cannot call anybody any more."""
    process = _inside.get()
    if process is not None and process.dead:
        raise KilledError


def _refuse_the_dead(*_details: object) -> None:
    still_alive()
