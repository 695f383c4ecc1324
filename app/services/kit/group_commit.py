"""Coalescing: many callers, each waiting for its own write, served by few writes of many items."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from app.errors import Unavailable

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupCommit(Generic[Item, Result]):
    """Collects what arrives while a write is under way, and writes it with the next one.

    What waits stands in lanes, which are served in turn: a crowd in one lane delays, and keeps out, nobody in another.

    With several `writers`, a crowd is split between them, so that one part is made ready while another is written;
    what is too few to be worth a second write (`least_share`) stays together.

    `write` takes items and returns one result each; all of them are settled when it returns. An idle caller never
    waits for company. When a write of several fails for another reason than Unavailable, each item is written
    alone, so that an error reaches the caller that caused it and nobody else.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        max_batch: int,
        max_waiting: int,
        writers: int = 1,
        least_share: int = 1,
    ) -> None:
        self._write = write
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._writers = writers
        self._least_share = least_share
        self._writing = 0  # items
        self._lanes: OrderedDict[str, deque[tuple[Item, asyncio.Future[Result]]]] = OrderedDict()
        self._waiting = 0  # items
        self._active = 0
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly
        self.writes = 0
        self.items = 0

    def submit(self, item: Item, lane: str = "") -> asyncio.Future[Result]:
        """Await it: its result is there once the item is written. Cancelled before that, the item is left out.

        Raises Unavailable when too many are waiting already: in its own lane as many as there is room for, divided
        by the lanes in which anything waits.
        """
        ahead = self._lanes.get(lane, ())
        if len(ahead) >= max(1, self._max_waiting // (len(self._lanes) + (not ahead))):
            raise Unavailable(f"{len(ahead)} submissions are waiting to be written; try again shortly")
        future: asyncio.Future[Result] = self._new_future()
        self._lanes.setdefault(lane, deque()).append((item, future))
        self._waiting += 1
        if self._active < self._writers:
            self._active += 1
            task = asyncio.create_task(self._drain(), name="group-commit")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return future

    def _new_future(self) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().create_future()

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._write_some()
        finally:
            # In the same step that saw nothing waiting: whoever comes next starts a new writer.
            self._active -= 1
            if not self._active:
                self._abandon()

    def _abandon(self) -> None:
        """Nothing waits here unless the last writer was cancelled: the loop is going down, and nobody will write."""
        while self._waiting:
            self._take_next()[1].cancel()

    async def _write_some(self) -> None:
        taken = [self._take_next() for _ in range(self._share())]
        batch = [(item, future) for item, future in taken if not future.done()]  # a caller may have gone
        if not batch:
            return
        self._writing += len(batch)
        try:
            await self._settle(batch)
        finally:
            self._writing -= len(batch)
            for _, future in batch:
                future.cancel()  # does nothing to those that were answered

    def _take_next(self) -> tuple[Item, asyncio.Future[Result]]:
        """The first of the lane whose turn it is, which goes to the end."""
        lane, waiting = self._lanes.popitem(last=False)
        taken = waiting.popleft()
        if waiting:
            self._lanes[lane] = waiting
        self._waiting -= 1
        return taken

    def _share(self) -> int:
        """How many of those that wait one writer takes."""
        share = -(-(self._waiting + self._writing) // self._writers)
        return min(self._max_batch, self._waiting, max(share, self._least_share))

    async def _settle(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        self.writes += 1
        self.items += len(batch)
        try:
            results = await self._write([item for item, _ in batch])
        except Exception as error:
            if len(batch) == 1 or isinstance(error, Unavailable):
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                return
            for one in batch:
                await self._settle([one])
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
