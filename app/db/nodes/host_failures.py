"""Hosts that failed us, in one table for all processes: a row for each machine that came to nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.hosts import COUNTS_FOR_MS, HostFailure
from app.db.engine import Database
from app.db.tables import host_failures
from app.errors import Transient, Unavailable


class DatabaseHostFailures:
    """Implements `app.ports.failures.HostFailures` for one provider, across all processes that share the database."""

    def __init__(self, database: Database, provider: str) -> None:
        self._database = database
        self._provider = provider

    async def note(self, failure: HostFailure) -> None:
        """See `HostFailures.note`."""
        try:
            async with self._database.statement() as connection:
                await add_host_failure(connection, self._provider, failure)
        except Unavailable as error:
            raise Transient(f"the failure of host {failure.host} cannot be kept: {error.message}") from error

    async def known(self, now_ms: int) -> Sequence[HostFailure]:
        """See `HostFailures.known`."""
        try:
            async with self._database.statement() as connection:
                return (await failures_by_provider(connection, now_ms=now_ms)).get(self._provider, [])
        except Unavailable as error:
            raise Transient(f"hosts that failed cannot be looked up: {error.message}") from error


async def add_host_failure(connection: AsyncConnection, provider: str, failure: HostFailure) -> None:
    """Remember it. A machine that was noted before counts once, from the first time on."""
    fresh = insert(host_failures).values(
        provider=provider, host=failure.host, machine=failure.machine, at_ms=failure.at_ms
    )
    await connection.execute(fresh.on_conflict_do_nothing())


async def failures_by_provider(connection: AsyncConnection, *, now_ms: int) -> Mapping[str, list[HostFailure]]:
    """Those that count at `now_ms`, the oldest of each provider first."""
    row = host_failures.c
    found = await connection.execute(
        select(row.provider, row.host, row.machine, row.at_ms)
        .where(row.at_ms > now_ms - COUNTS_FOR_MS)
        .order_by(row.at_ms, row.host, row.machine)
    )
    failures: dict[str, list[HostFailure]] = defaultdict(list)
    for provider, host, machine, at_ms in found:
        failures[provider].append(HostFailure(host, machine, at_ms))
    return failures


async def delete_host_failures(connection: AsyncConnection, *, now_ms: int) -> None:
    """Delete what does not count any more."""
    await connection.execute(delete(host_failures).where(host_failures.c.at_ms <= now_ms - COUNTS_FOR_MS))
