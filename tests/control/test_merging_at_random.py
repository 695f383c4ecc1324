"""Whatever agents, owners, deaths and decisions do to two jobs that are merged, in whatever order: nobody waits for a
job that is over, and both come to an end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.db import tables as t
from app.db.engine import Database, make_engine
from app.errors import Conflict, Fenced, NotFound
from app.services.jobs.resume_job import resume_job
from tests.conftest import CountingIds, ManualClock
from tests.control.merging import Merging
from tests.control.moving import Moving
from tests.control.world import World, make_settings
from tests.crashes.stage import empty

OVER = ("succeeded", "failed", "cancelled")
EXITS = st.sampled_from(
    [{"exit_code": 0}, {"exit_code": 75, "saved_after_stop": True}, {"signal": 9}, {"environment_error": "no space"}]
)
WHO = st.sampled_from(["lead", "lead", "companion"])
ACTIONS = st.one_of(
    st.tuples(st.just("merge")),
    st.tuples(st.just("split")),
    st.tuples(st.just("place")),
    st.tuples(st.just("place")),
    st.tuples(st.just("save"), WHO, st.integers(1, 60)),
    st.tuples(st.just("exit"), WHO, EXITS),
    st.tuples(st.just("lose"), WHO),
    st.tuples(st.just("owner"), WHO, st.sampled_from(["pause", "resume", "cancel"])),
    st.tuples(st.just("restart")),
)


class Chaos:
    """Plays actions, and looks at the rows after each."""

    def __init__(self, merging: Merging) -> None:
        self.merging, self.world = merging, merging.world
        self.epochs: dict[str, int] = {}

    async def play(self, kind: str, *how: Any) -> None:
        self.world.clock.advance(ms=100)
        await getattr(self, kind)(*how)
        await self.check()

    def who(self, name: str) -> Moving:
        return self.merging.lead if name == "lead" else self.merging.companion

    async def merge(self) -> None:
        """What cannot be merged is dropped."""
        await self.merging.merge()

    async def split(self) -> None:
        if await self.world.rows(self.merging.table):
            await self.merging.split()

    async def place(self) -> None:
        """What is decided is done, and code runs where it may."""
        await self.world.decide()
        await self.world.work()
        for node in await self.world.rows(t.nodes):
            if node.state in ("requested", "booting") and self.world.cloud.of_label(node.id):
                await self.world.boot(node.id)
        for job in (self.merging.lead, self.merging.companion):
            if await self.holds(job):
                await job.says(job.source, "running")

    async def holds(self, job: Moving) -> bool:
        """Whether a live run has this job: its `source` is the newest one then."""
        live = {run.id for run in await job.live_runs()}
        mine = [row.run_id for row in await self.world.rows(t.run_jobs) if row.job_id == job.job_id]
        job.source = mine[-1] if mine else ""
        return job.source in live

    async def save(self, who: str, step: int) -> None:
        job = self.who(who)
        if await self.holds(job):
            await job.saves(job.source, step)

    async def exit(self, who: str, how: dict[str, Any]) -> None:
        job = self.who(who)
        if await self.holds(job):
            await job.says(job.source, "exited", **how)

    async def lose(self, who: str) -> None:
        job = self.who(who)
        if await self.holds(job):
            await job.loses((await job.place(job.source))[0])

    async def owner(self, who: str, wish: str) -> None:
        job, world = self.who(who), self.world
        try:
            if wish == "pause":
                await job.pause()
            elif wish == "cancel":
                await job.cancel()
            else:
                async with world.database.transaction() as connection:
                    await resume_job(connection, world.project_id, job.job_id, now_ms=world.clock.now_ms())
        except (Conflict, Fenced, NotFound):
            return

    async def restart(self) -> None:
        await self.world.restart()

    async def check(self) -> None:
        await self.world.check_invariants()
        for job in (self.merging.lead, self.merging.companion):
            epoch = (await self.world.job(job.job_id)).epoch
            assert epoch >= self.epochs.get(job.job_id, 0)
            self.epochs[job.job_id] = epoch

    async def settle(self) -> None:
        """From now on everybody does what is wanted: both jobs end."""
        for _ in range(12):
            states = {
                job: (await self.world.job(job.job_id)).state for job in (self.merging.lead, self.merging.companion)
            }
            if set(states.values()) <= set(OVER):
                break
            for job, state in states.items():
                if state == "paused":
                    await self.owner("lead" if job is self.merging.lead else "companion", "resume")
            self.world.clock.advance(s=60)
            await self.place()
            for job in states:
                if await self.holds(job):
                    leaves = (await job.run(job.source)).state == "stopping"
                    how = {"exit_code": 75, "saved_after_stop": True} if leaves else {"exit_code": 0}
                    await job.says(job.source, "exited", **how)
            await self.check()
        assert set(states.values()) <= set(OVER), states
        assert not [row for row in await self.world.rows(self.merging.table) if row.state == "open"]


@pytest.mark.timeout(300)
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, min_size=4, max_size=8))
def test_no_order_of_events_breaks_a_merge(database_url: str, tmp_path: Path, actions: list[tuple[Any, ...]]) -> None:
    """Random merges, splits, ends, losses, wishes and restarts: every promise holds after each."""

    async def tell() -> None:
        database = Database(make_engine(database_url, pool_size=4, timeout_s=10))
        clock = ManualClock()
        try:
            await empty(database)
            world = World(database, make_settings(database_url), clock, CountingIds(clock))
            await world.open()
            merging = Merging(world, tmp_path)
            await merging.begin(trains=False)
            chaos = Chaos(merging)
            for kind, *how in actions:
                await chaos.play(kind, *how)
            await chaos.settle()
        finally:
            await database.close()

    asyncio.run(tell())
