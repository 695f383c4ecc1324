"""Whatever comes and goes: nobody else's guaranteed job begins on what is reserved, and who reserved it has it."""

from __future__ import annotations

import random

import pytest
from sqlalchemy import select

from app.core.model.job import PriorityClass
from app.db import tables as t
from app.services.reservations.reserve import reserve
from tests.control.lending_pool import HOUR_MS, LendingPool
from tests.control.world import World

STEPS, GPUS, RESERVED = 12, 4, 2
STEP_MS = 20_000  # within which agents and hosts have to be heard of
_HAS_A_PLACE = ("starting", "running")


class History:
    """One project has reserved two of four GPUs for the last two thirds of it; jobs of three projects come and go."""

    def __init__(self, pool: LendingPool, seed: int) -> None:
        self.pool, self.world, self.chance = pool, pool.world, random.Random(seed)
        self.waits: dict[str, int] = {}  # of the project's own jobs that fit: for how many steps

    async def begin(self) -> None:
        world, now_ms = self.world, self.world.clock.now_ms()
        self.others = [await self.pool.other_project(), await self.pool.other_project()]
        self.from_ms = now_ms + STEPS // 3 * STEP_MS
        async with world.database.transaction() as connection:
            await reserve(
                *(connection, world.ids, world.project_id),
                **{"pool": "lab", "gpu_type": "A100", "gpus": RESERVED, "from_ms": self.from_ms},
                until_ms=now_ms + HOUR_MS,
                now_ms=now_ms,
            )

    async def step(self) -> None:
        self.world.clock.advance(ms=STEP_MS)
        for _ in range(self.chance.randrange(3)):
            await self._arrives()
        await self.pool.beat()
        await self.pool.host_works()
        await self.pool.turn(2)
        await self._code_runs()
        await self.pool.turn(2)
        await self.pool.check()
        await self._nobody_else_began()
        await self._its_own_have_a_place()

    async def _arrives(self) -> None:
        mine = self.chance.random() < 0.4
        classes = [PriorityClass.GUARANTEED, PriorityClass.SPOT]
        columns = {"priority_class": self.chance.choice(classes)}
        gpus = self.chance.choice([1, 1, 2])
        await self.pool.submit(gpus, None if mine else self.chance.choice(self.others), **columns)

    async def _code_runs(self) -> None:
        """Those that begin run; those that are asked to save leave; some are done."""
        for row in await self.world.rows(t.jobs):
            if row.state == "starting":
                await self.pool.trains(row.id, 1)
            elif row.state == "checkpointing":
                await self.pool.leaves(row.id, row.step + 1)
            elif row.state == "running" and self.chance.random() < 0.25:
                await self.pool.leaves(row.id, row.step + 1, saved=False)

    async def _nobody_else_began(self) -> None:
        """Runs that began once a GPU of theirs was kept, of guaranteed jobs: its project's alone."""
        world = self.world
        kept = {(row.host_id, row.gpu_index): row.since_ms for row in await world.rows(t.reserved_gpus)}
        machines = {row.node_id: row for row in await world.rows(t.host_machines)}
        async with world.database.transaction() as connection:
            held = select(t.allocations.c.node_id, t.runs.c.created_ms, t.jobs.c.project_id, t.jobs.c.id).where(
                *(t.runs.c.id == t.allocations.c.run_id, t.run_jobs.c.run_id == t.runs.c.id),
                *(t.jobs.c.id == t.run_jobs.c.job_id, t.jobs.c.priority_class == PriorityClass.GUARANTEED),
                t.jobs.c.project_id != world.project_id,
            )
            rows = list(await connection.execute(held))
        for row in rows:
            machine = machines.get(row.node_id)
            for index in () if machine is None else machine.gpu_indices:
                since_ms = kept.get((machine.host_id, index))
                assert since_ms is None or row.created_ms <= since_ms, f"{row.id} began on GPU {index}"

    async def _its_own_have_a_place(self) -> None:
        """A job of the project that fits into what is kept, and that nobody who began before holds up, waits for no
        more than two steps: until its spot jobs have had their word, and it has begun."""
        world = self.world
        if world.clock.now_ms() < self.from_ms + STEP_MS:
            return
        jobs = [row for row in await world.rows(t.jobs) if row.project_id == world.project_id]
        mine = [row for row in jobs if row.priority_class == PriorityClass.GUARANTEED]
        (reservation,) = await world.rows(t.reservations)
        used = sum(row.resources["gpus_min"] for row in mine if row.state in (*_HAS_A_PLACE, "checkpointing"))
        free = RESERVED - reservation.blocked_gpus - used
        waiting = sorted((row for row in mine if row.state in ("queued", "waiting")), key=lambda row: row.deadline_ms)
        first = waiting[0] if waiting else None
        if first is None or first.resources["gpus_min"] > free:
            self.waits = {}
            return
        self.waits = {first.id: self.waits.get(first.id, 0) + 1}
        assert self.waits[first.id] <= 2, f"{first.id} waits, and {free} GPUs are kept for it: {first.wait_reason}"


@pytest.mark.parametrize("seed", range(2))
async def test_what_is_reserved_is_its_projects(world: World, seed: int) -> None:
    pool = LendingPool(world, gpus=GPUS)
    await pool.open()
    history = History(pool, seed)
    await history.begin()
    for _ in range(STEPS):
        await history.step()
    states = {row.state for row in await world.rows(t.jobs)}
    assert states & {"running", "succeeded"}, "something has happened"
