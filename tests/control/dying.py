"""Processes that die in the middle of a transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.db.engine import Database


class KilledError(BaseException):
    """The process is gone."""


class DyingDatabase(Database):
    """Its process dies after so many statements of its transactions."""

    def __init__(self, engine: AsyncEngine, lifetime: int) -> None:
        super().__init__(engine)
        self._left = lifetime

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        async with super().transaction() as connection:
            line = connection.sync_connection
            event.listen(line, "after_cursor_execute", self._count)
            try:
                yield connection
            finally:
                event.remove(line, "after_cursor_execute", self._count)

    def _count(self, *_details: object) -> None:
        self._left -= 1
        if self._left == 0:
            raise KilledError
