"""Rows that cannot be read: left out of what is read, and told, instead of stopping whoever reads them.

A row may hold what somebody wrote by hand, what a bug of ours wrote, or what a newer release wrote and nothing here
stands for: its new words do have readings (`app.core.foreign`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

T = TypeVar("T")
Default = TypeVar("Default")

RowKey = tuple[str, str]  # table, and id of the row; "" for what is read of the whole table at once


@dataclass(slots=True)
class RowReading:
    """What of one reading could not be read, with the reason for the log. `job_ids`: all jobs that this concerns.
    `node_ids`, `hidden_tiers`: the nodes that are not seen, and their tiers as the rows have them."""

    unread: dict[RowKey, Exception] = field(default_factory=dict)
    job_ids: set[str] = field(default_factory=set)
    node_ids: set[str] = field(default_factory=set)
    hidden_tiers: list[str] = field(default_factory=list)

    def of(self, table: str, row_id: str, read: Callable[[], T]) -> T | None:
        """What `read` makes of a row; None, with the row noted, when it cannot."""
        try:
            return read()
        except Exception as error:
            self.unread[table, row_id] = error
            return None

    async def aside(
        self, connection: AsyncConnection, table: str, read: Callable[[], Awaitable[T]], without: Default
    ) -> T | Default:
        """What `read` finds, or `without` when the database cannot work it out (a sum that no number holds). For what a
        decision can do without. Raises what it is told when the connection is lost."""
        try:
            async with connection.begin_nested():
                return await read()
        except Exception as error:
            if connection.closed or connection.invalidated:
                raise
            self.unread[table, ""] = error
            return without
