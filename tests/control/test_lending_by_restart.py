"""A job whose GPUs change by restarts lends one through the loop itself, and has it back."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from allpass.wire.agent import GpusTold, RunReport
from app.core.lending import TAKE_MS
from app.db.tables import allocations, jobs, runs, size_speeds
from app.services.runs.apply_run_reports import apply_run_reports
from tests.control.test_lending import Pool
from tests.control.test_lending_rules import points
from tests.control.world import World

PAUSE_MS = 20_000


class RestartedPool(Pool):
    """Its lender is restarted, which its agent says."""

    async def begin(self, *args: Any, **columns: Any) -> None:
        await super().begin(*args, **columns)
        async with self.world.database.transaction() as connection:
            restarted = {"template": {"resize_by": "restart"}}
            await connection.execute(update(jobs).where(jobs.c.id == self.lender).values(restarted))

    async def agent_says(self, *used: int, leaving: tuple[int, ...] = (), **more: Any) -> None:
        gpus = GpusTold(used=list(used), leaving=list(leaving), refused=[], **more)
        report = RunReport(run_id=self.run_id, job_id=self.lender, epoch=1, phase="running", step=1, gpus=gpus)
        world = self.world
        now_ms = world.clock.now_ms()
        await apply_run_reports(world.database, world.ids, self.node_id, [report], now_ms=now_ms, fault_budget=3)

    async def end_all(self) -> None:
        """The runs of others there are over, and so are their jobs."""
        async with self.world.database.transaction() as connection:
            now_ms = self.world.clock.now_ms()
            others = allocations.c.run_id != self.run_id, allocations.c.to_ms.is_(None)
            ended = update(allocations).where(*others).values(to_ms=now_ms).returning(allocations.c.run_id)
            for run_id in (await connection.execute(ended)).scalars().all():
                await connection.execute(update(runs).where(runs.c.id == run_id).values(state="ended", ended_ms=now_ms))
            await connection.execute(update(jobs).where(jobs.c.id != self.lender).values(state="succeeded"))

    async def faults(self) -> tuple[int, int]:
        async with self.world.database.transaction() as connection:
            row = await connection.execute(select(jobs.c.faults, jobs.c.moves).where(jobs.c.id == self.lender))
        return tuple(row.one())


@pytest.fixture
async def pool(world: World) -> RestartedPool:
    made = RestartedPool(world)
    await made.begin()
    await made.agent_says(0, 1, 2, 3, pause_ms=PAUSE_MS)
    await made.decide(2 * PAUSE_MS)
    return made


async def test_it_is_lent_when_its_processes_have_gone_and_comes_back(pool: RestartedPool) -> None:
    """An interactive job's GPU is its own for as long as that takes; neither a fault nor a move is counted."""
    job_id = await pool.asks(kind="interactive", kind_said=True)
    await pool.decide()
    assert await pool.size() == (3, [0, 1, 2, 3])
    await pool.agent_says(0, 1, 2, 3, leaving=(3,), pause_ms=PAUSE_MS)
    await pool.decide(TAKE_MS)
    assert await pool.state(job_id) == "queued"
    other = await pool.asks()  # whoever comes meanwhile
    await pool.decide()
    await pool.agent_says(0, 1, 2, pause_ms=PAUSE_MS)
    await pool.decide()
    assert (await pool.state(job_id), await pool.state(other)) == ("starting", "queued")
    await pool.decide(PAUSE_MS)
    assert await pool.size() == (3, [0, 1, 2]), "it rests"
    await pool.decide(PAUSE_MS)
    assert await pool.size() == (2, [0, 1, 2])
    await pool.agent_says(0, 1, pause_ms=PAUSE_MS)
    await pool.decide()
    assert await pool.state(other) == "starting"
    await pool.end_all()
    await pool.decide(2 * PAUSE_MS)
    assert await pool.size() == (4, [0, 1, 2, 3])
    assert await pool.faults() == (0, 0)


async def test_one_that_could_not_is_asked_no_more(pool: RestartedPool) -> None:
    """Whoever waits is lent nothing by it, and it is told once."""
    job_id = await pool.asks()
    await pool.decide()
    await pool.agent_says(0, 1, 2, leaving=(3,))
    await pool.agent_says(0, 1, 2, 3, kept="failed")
    for _ in range(5):
        await pool.decide(10 * PAUSE_MS)
    assert (await pool.size(), await pool.state(job_id)) == ((4, [0, 1, 2, 3]), "queued")
    told = await pool.told()
    assert (told.count("gpus_lent"), told.count("gpus_kept")) == (1, 1)
    (remark,) = [one.text for one in (await pool.explained()).because if "keeps" in one.text]
    assert "keeps its 4 GPUs: begun again on 3 from what it had saved, it failed at once" in remark


async def test_what_it_costs_is_explained(pool: RestartedPool) -> None:
    (remark,) = [one for one in (await pool.explained()).because if "not exact" in one.text]
    assert remark.text.endswith("a restart took 20 s") and remark.data == {"exact": False, "restart_s": 20.0}


async def test_its_steps_a_second_are_not_kept_for_others(pool: RestartedPool) -> None:
    """Its batch follows its GPUs, so they say nothing of how fast it is."""
    await pool.decide()
    await points(pool, pool.lender, 1, 1, 1_000)
    await pool.asks()
    await pool.decide(15_000)
    assert await pool.world.rows(size_speeds) == []
