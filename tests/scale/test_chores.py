"""Every chore over much of everything: what it sends does not grow with what there is, or was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from app.control import telling
from app.control.loop import _WAITING_AT_ONCE
from app.control.meter import read_meters
from app.core.elastic.rules import MENDED
from app.core.model.budget import Budget, Period
from app.core.model.health import Chore
from app.core.model.money import Money
from app.core.model.plan import Waiting
from app.db import tables as t
from app.db.decisions.enactment import set_wait_reasons
from app.db.engine import Database
from app.db.listen import Listener
from app.db.lock_order import lock_jobs, lock_rows, lock_scope
from app.db.money.budgets import budgets_now, set_budget
from app.db.money.ledger import payers_of
from app.db.notify import JOB
from app.db.unreadable import RowReading
from app.services.sizes.stand_in_queues import look_at_queues, set_changed
from app.storage.directory import DirectoryStore
from tests.conftest import ManualClock
from tests.control.world import World
from tests.scale.ground import MANY, METERED_MS, Ground, past_job, waiting_job
from tests.scale.statements import counted

_FEW = 30
_PARAMETERS = 100
_WAITING = [waiting_job(number) for number in range(MANY)]
_PAST = [past_job(number) for number in range(MANY)]


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> DirectoryStore:
    return DirectoryStore(tmp_path / "objects", "http://127.0.0.1:1", "k" * 32, max_object_bytes=1024**2, clock=clock)


async def test_no_chore_sends_more_because_there_is_much(world: World, store: DirectoryStore) -> None:
    """Each does its work in a few statements of a few parameters, a hundred thousand jobs or not."""
    world.control._objects = store
    for turn in world.control._timetable().values():
        for name, work in turn.chores.items():
            with counted() as sent:
                await work()
            assert sent.count <= _FEW, f"{name} sent {sent.count} statements"
            assert sent.most_parameters <= _PARAMETERS, f"{name} sent {sent.most_parameters} parameters"


async def test_a_decision_over_fifty_thousand_jobs_is_told_in_few_statements(
    world: World, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no place to give, what is sent does not depend on how many wait; in turns everybody's reason is kept."""
    monkeypatch.setattr(telling, "_AT_ONCE", MANY // 5)
    world.settings.serverless_limit = world.settings.serverful_limit = 0
    await world.restart()
    async with world.database.transaction() as connection:
        await connection.execute(update(t.nodes).where(t.nodes.c.id == ground.node_id).values(state="draining"))
    loop = world.control.loop
    await loop._resume_state()
    for _turn in range(5):
        world.clock.advance(s=1)
        loop._stored_ms = world.clock.now_ms()  # a decision that changes nothing is stored once per tick, and not now
        with counted() as sent:
            decision = await loop.tick("test")
        assert decision is not None
        assert (len(decision.plan.actions), len(decision.plan.waiting)) == (0, MANY // 5)
        assert sent.count <= _FEW + MANY / _WAITING_AT_ONCE
        assert sent.most_parameters <= _PARAMETERS
    assert await _count(world, t.jobs, t.jobs.c.wait_reason.is_not(None)) == MANY


async def test_where_fifty_thousand_jobs_stand_is_looked_at_and_kept_in_few_statements(
    world: World, ground: Ground
) -> None:
    """All wait beside an elastic job."""
    now_ms = world.clock.now_ms()
    with counted() as sent:
        async with world.database.transaction() as connection:
            found, _ = await look_at_queues(connection, _WAITING, MENDED, now_ms=now_ms)
            assert await set_changed(connection, found, now_ms=now_ms) == MANY
        async with world.database.transaction() as connection:
            again, _ = await look_at_queues(connection, _WAITING, MENDED, now_ms=now_ms + 1)
            assert not any(one.has_changed for one in again)
    assert sent.count <= _FEW
    assert sent.most_parameters <= _PARAMETERS
    assert await _count(world, t.job_queues, t.job_queues.c.queue == 2) == MANY
    async with world.database.transaction() as connection:
        await connection.execute(t.job_queues.delete())


async def test_fifty_thousand_jobs_that_a_budget_holds_are_looked_at_together(world: World, ground: Ground) -> None:
    """While nothing changes, nothing is asked of each of them; nor are lines of the ledger added up."""
    now_ms = world.clock.now_ms()
    nothing = Budget("bud_1", ground.project_id, None, None, Period.DAY, Money(0))
    async with world.database.transaction() as connection:
        await set_budget(connection, nothing, set_by="key_1", now_ms=now_ms)
        (used_up,) = await budgets_now(connection, RowReading(), now_ms=now_ms)
        held = {"state": "paused", "pause_reason": "budget", "wait_reason": used_up.why_held}
        await connection.execute(update(t.jobs).where(t.jobs.c.state == "queued").values(**held))
        await connection.execute(update(t.nodes).values(state="terminating"))
    with counted() as sent:
        assert await world.control.do(Chore.BUDGETS) == 0
    assert await _count(world, t.jobs, t.jobs.c.pause_reason == "budget", t.jobs.c.state == "paused") == MANY
    assert sent.count <= _FEW
    assert sent.most_parameters <= _PARAMETERS


async def test_who_follows_one_of_many_jobs_hears_why_it_waits(database: Database, database_url: str) -> None:
    """Fifty thousand jobs are told of in two statements, and each follower is woken."""
    listener = Listener(database_url, timeout_s=10)
    await listener.start()
    told = [Waiting(job_id, "waits for a place") for job_id in _WAITING]
    try:
        with listener.watch(JOB, _WAITING[0]) as first, listener.watch(JOB, _WAITING[-1]) as last:
            first.clear()
            last.clear()
            with counted() as sent:
                async with database.transaction() as connection:
                    assert await set_wait_reasons(connection, told) == MANY
            async with asyncio.timeout(30):
                await first.wait()
                await last.wait()
            async with database.transaction() as connection:
                assert await set_wait_reasons(connection, told) == 0
    finally:
        await listener.close()
    assert sent.count == 2
    assert sent.most_parameters <= _FEW


async def test_a_meter_reads_what_is_new_on_a_node_with_a_long_past(world: World, ground: Ground) -> None:
    """Fifty thousand runs have left; one began since the last reading, and one has ended. These two pay, their jobs
    are locked, and nobody else's."""
    now, before = _WAITING[0], _WAITING[1]
    await _hold(world, ground, "run_now", now, METERED_MS + 4_000, None)
    await _hold(world, ground, "run_before", before, METERED_MS - 1_000, METERED_MS + 4_000)
    async with world.database.transaction() as connection:
        payers = await payers_of(connection, [ground.node_id], until_ms=world.clock.now_ms())
    assert payers == {now, before}
    with counted() as sent:
        assert await read_meters(world.control.context) == 1
    lines = [row for row in await world.rows(t.ledger) if row.to_ms > METERED_MS]
    paid = {(row.job_id, row.from_ms - METERED_MS, row.to_ms - METERED_MS) for row in lines}
    assert paid == {(before, 0, 4_000), (None, 0, 4_000), (now, 4_000, 10_000), (None, 4_000, 10_000)}
    assert sent.count <= _FEW
    assert sent.most_parameters <= _PARAMETERS


@pytest.mark.parametrize("lock", [lock_jobs, lock_scope, lock_rows])
async def test_any_number_of_rows_is_locked_at_once(world: World, lock: Callable[..., Any]) -> None:
    """In a few statements, of one array each."""
    with counted() as sent:
        async with world.database.transaction() as connection:
            assert len(await lock(connection, _WAITING + _PAST)) == 2 * MANY
    assert sent.count <= _FEW
    assert sent.most_parameters <= _PARAMETERS


async def _hold(world: World, ground: Ground, run_id: str, job_id: str, from_ms: int, to_ms: int | None) -> None:
    """A run of the job that held one GPU of the busy node in that time."""
    ended = to_ms is not None
    async with world.database.transaction() as connection:
        run = t.runs.insert().values(
            id=run_id, project_id=ground.project_id, tier="marketplace", state="ended" if ended else "running",
            created_ms=from_ms, ended_ms=to_ms,
        )  # fmt: skip
        await connection.execute(run)
        await connection.execute(t.run_jobs.insert().values(run_id=run_id, job_id=job_id, epoch=1))
        held = {"run_id": run_id, "node_id": ground.node_id, "gpu_indices": [0], "from_ms": from_ms, "to_ms": to_ms}
        await connection.execute(t.allocations.insert().values(id=f"aloc_of_{run_id}", **held))


async def _count(world: World, table: Any, *conditions: Any) -> int:
    async with world.database.transaction() as connection:
        found: int = (await connection.execute(select(func.count()).select_from(table).where(*conditions))).scalar_one()
        return found
