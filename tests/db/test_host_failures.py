"""Hosts that failed are remembered by all processes, for as long as it counts."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select

from app.core.hosts import COUNTS_FOR_MS, HostFailure
from app.db.engine import Database, make_engine
from app.db.nodes.host_failures import DatabaseHostFailures, delete_host_failures, failures_by_provider
from app.db.tables import host_failures
from app.errors import Transient
from app.ports.failures import HostFailures, ProcessHostFailures
from tests.conftest import ManualClock


@pytest.mark.parametrize("shared", [False, True], ids=["in one process", "in the database"])
async def test_a_machine_counts_once_and_until_it_is_too_old(
    database: Database, clock: ManualClock, *, shared: bool
) -> None:
    """Noted by whoever, however often, from the first time on; each machine of a host counts for itself."""
    failures: HostFailures = DatabaseHostFailures(database, "vast") if shared else ProcessHostFailures()
    now_ms = clock.now_ms()
    first, again, other = (HostFailure("7", ref, now_ms + late) for ref, late in (("a", 0), ("a", 9), ("b", 5)))
    for failure in (first, again, other):
        await failures.note(failure)
    assert sorted(await failures.known(now_ms), key=lambda one: one.machine) == [first, other]
    assert await failures.known(now_ms + COUNTS_FOR_MS) == [other]
    assert await failures.known(now_ms + COUNTS_FOR_MS + 5) == []


async def test_every_process_knows_what_one_has_found_also_after_it_is_gone(
    database_url: str, clock: ManualClock
) -> None:
    """Two processes note at once; a third that starts when both have ended knows of all of its provider."""
    processes = [Database(make_engine(database_url, pool_size=2, timeout_s=10.0)) for _ in range(3)]
    now_ms = clock.now_ms()
    notes = [
        DatabaseHostFailures(process, "vast").note(HostFailure(host, "a", now_ms))
        for process in processes[:2]
        for host in ("7", "8")
    ]
    await asyncio.gather(*notes)
    await processes[0].close()
    await DatabaseHostFailures(processes[1], "other").note(HostFailure("9", "a", now_ms))
    await processes[1].close()
    known = await DatabaseHostFailures(processes[2], "vast").known(now_ms)
    assert known == [HostFailure("7", "a", now_ms), HostFailure("8", "a", now_ms)]
    await processes[2].close()


async def test_what_does_not_count_any_more_is_deleted(database: Database, clock: ManualClock) -> None:
    """Exactly what nobody is told of any more: tidying up changes no answer."""
    failures = DatabaseHostFailures(database, "vast")
    for number, age_ms in enumerate((0, COUNTS_FOR_MS - 1, COUNTS_FOR_MS, 2 * COUNTS_FOR_MS)):
        await failures.note(HostFailure("7", str(number), clock.now_ms() - age_ms))
    async with database.transaction() as connection:
        before = await failures_by_provider(connection, now_ms=clock.now_ms())
        await delete_host_failures(connection, now_ms=clock.now_ms())
        assert await failures_by_provider(connection, now_ms=clock.now_ms()) == before
        kept = (await connection.execute(select(host_failures.c.machine))).scalars()
        assert sorted(kept) == ["0", "1"]


async def test_without_the_database_nobody_can_say() -> None:
    """Both calls fail as a provider's do, so that the caller tries again."""
    database = Database(make_engine("postgresql://nobody@127.0.0.1:1/none", pool_size=1, timeout_s=1))
    failures = DatabaseHostFailures(database, "vast")
    with pytest.raises(Transient):
        await failures.note(HostFailure("7", "a", 0))
    with pytest.raises(Transient):
        await failures.known(0)
    await database.close()
