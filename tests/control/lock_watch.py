"""Who locks what, and when: seen after every statement of a transaction, from a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.util import await_only

from app.db.engine import Database, make_engine

Row = tuple[int, str]  # the place of its table in the order, and its id
_HELD = """
    SELECT {rank} AS rank, id FROM {table}
    WHERE id NOT IN (SELECT id FROM {table} FOR NO KEY UPDATE SKIP LOCKED)
"""
_TABLES = ("jobs", "runs", "nodes")


@dataclass
class Passage:
    """One transaction: after which of its statements it held which rows for the first time."""

    taken: list[tuple[int, frozenset[Row]]] = field(default_factory=list)
    statements: int = 0
    held: frozenset[Row] = frozenset()

    def breaches(self) -> list[str]:
        """Each row that was locked after one that comes later in the order."""
        told, held = [], set[Row]()
        for statement, rows in self.taken:
            late = min(rows)
            if held and late < max(held):
                told.append(f"statement {statement} locks {late[1]} after {max(held)[1]}")
            held |= rows
        return told


class LockWatch:
    """While it is entered: watches the transactions of one engine, one at a time; nobody else may hold locks."""

    def __init__(self, engine: AsyncEngine, observer: asyncpg.Connection) -> None:
        self._engine = engine.sync_engine
        self._observer = observer
        self.passages: list[Passage] = []

    def __enter__(self) -> LockWatch:
        event.listen(self._engine, "begin", self._begin)
        event.listen(self._engine, "after_cursor_execute", self._after)
        return self

    def __exit__(self, *_how: object) -> None:
        event.remove(self._engine, "begin", self._begin)
        event.remove(self._engine, "after_cursor_execute", self._after)

    def _begin(self, _connection: object) -> None:
        self.passages.append(Passage())

    def _after(self, *_details: object) -> None:
        if not self.passages:
            return
        passage = self.passages[-1]
        passage.statements += 1
        held = await_only(self._held())
        new = held - passage.held
        if new:
            passage.taken.append((passage.statements, new))
        passage.held = held

    async def _held(self) -> frozenset[Row]:
        rows: set[Row] = set()
        async with self._observer.transaction():
            for rank, table in enumerate(_TABLES):
                found = await self._observer.fetch(_HELD.format(rank=rank, table=table))
                rows |= {(row["rank"], row["id"]) for row in found}
        return frozenset(rows)


async def _nothing() -> None:
    return


class TakenBack(Database):
    """Every transaction is rolled back when it is done: what it locks is seen, and the next one finds all as it was.

    `pauses_after`: a transaction stops there, after so many statements, and `meanwhile` is awaited.
    """

    def __init__(
        self, engine: AsyncEngine, *, pauses_after: int = 0, meanwhile: Callable[[], Awaitable[None]] = _nothing
    ) -> None:
        super().__init__(engine)
        self._left = pauses_after
        self._meanwhile = meanwhile

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self._engine.connect() as connection, connection.begin() as transaction:
            line = connection.sync_connection
            event.listen(line, "after_cursor_execute", self._count)
            try:
                yield connection
            finally:
                event.remove(line, "after_cursor_execute", self._count)
            await transaction.rollback()

    def _count(self, *_details: object) -> None:
        self._left -= 1
        if self._left == 0:
            await_only(self._meanwhile())


async def until_over_or_waiting(task: asyncio.Task[Any], observer: asyncpg.Connection) -> None:
    """Until the task has ended, or a transaction of this database waits for a lock."""
    waiting = """SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'"""
    while not task.done() and not await observer.fetchval(waiting):
        await asyncio.sleep(0.002)


Act = Callable[[Any], Awaitable[Any]]


class Meeting:
    """Two transactions on one database: one stops at a chosen statement, and the other runs as far as it gets. What
    they write is taken back, so that the next two find everything as it was. They are played on `stage`, in its
    `world`."""

    def __init__(self, stage: Any, database_url: str, observer: asyncpg.Connection) -> None:
        self._stage = stage
        self._engine = make_engine(database_url, pool_size=4, timeout_s=60)
        self._observer = observer
        self._plain = TakenBack(self._engine)

    async def close(self) -> None:
        await self._engine.dispose()

    async def watch(self, act: Act) -> list[Passage]:
        """What the transactions of `act` lock, which has the database to itself."""
        self._stage.world.database = self._plain
        with LockWatch(self._engine, self._observer) as watch:
            await act(self._stage)
        return [passage for passage in watch.passages if passage.taken]

    async def meet(self, act: Act, other: Act, *, after: int) -> None:
        """`other` begins when `act` has made so many statements. Raises what the database says of a deadlock."""
        tasks: list[asyncio.Task[Any]] = []

        async def let_the_other_run() -> None:
            self._stage.world.database = self._plain
            tasks.append(asyncio.ensure_future(other(self._stage)))
            await until_over_or_waiting(tasks[0], self._observer)

        self._stage.world.database = TakenBack(self._engine, pauses_after=after, meanwhile=let_the_other_run)
        try:
            await act(self._stage)
        finally:
            await asyncio.gather(*tasks)
