"""Kill the control process at any step, start another one, and the story still ends well.

By default it dies at every third step of renting and of ending, at every fourth of ending what was never seen, from the
first on until it gets through; with `--sweep` at every step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.db import tables as t
from app.services.jobs.cancel_job import cancel_job
from tests.control.fake_provider import Fault
from tests.control.world import World


class KilledError(asyncio.CancelledError):
    """The process is gone: nothing of it may run on, as with SIGKILL."""


class Fuse:
    """Counts the steps at which a process can die; at the chosen one it does, and stays dead."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.steps = 0

    def arm(self, after_steps: int) -> None:
        self.left = after_steps
        self.steps = 0

    def disarm(self) -> None:
        self.left = None

    def step(self, _name: str = "") -> None:
        self.steps += 1
        if self.left is not None:
            if self.left <= 0:
                raise KilledError
            self.left -= 1


class MortalDatabase:
    """Dies before a transaction, before its commit (which is then rolled back), or right after it."""

    def __init__(self, database: Any, fuse: Fuse) -> None:
        self._database = database
        self._fuse = fuse

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        self._fuse.step()
        async with self._database.transaction() as connection:
            yield connection
            self._fuse.step()
        self._fuse.step()

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[Any]:
        """Each statement commits by itself: there is a before and an after."""
        self._fuse.step()
        async with self._database.statement() as connection:
            yield connection
        self._fuse.step()

    @asynccontextmanager
    async def driver(self) -> AsyncIterator[Any]:
        """The same."""
        self._fuse.step()
        async with self._database.driver() as connection:
            yield connection
        self._fuse.step()


def _mortal(world: World) -> Fuse:
    fuse = Fuse()
    world.seen_by_control = MortalDatabase(world.database, fuse)  # type: ignore[assignment]  # one that dies
    world.cloud.before_call = fuse.step
    world.cloud.after_call = fuse.step
    world.control.context.leader._database = world.seen_by_control  # type: ignore[attr-defined]  # the same
    object.__setattr__(world.control.context, "database", world.seen_by_control)
    return fuse


async def _survive(world: World, fuse: Fuse, act: Callable[[], Awaitable[object]]) -> bool:
    """Act until done or dead; after death another process takes over. Whether it died."""
    try:
        await act()
    except asyncio.CancelledError:  # KilledError, or what is left of it for those who waited for a shared write
        fuse.disarm()
        await world.restart()
        return True
    finally:
        fuse.disarm()
    return False


async def _settle(world: World, rounds: int = 10) -> None:
    """Enough time and chores for everything that can still happen to happen."""
    for _ in range(rounds):
        await world.work()
        if not world.cloud.alive() and all(n.meter_closed for n in await world.rows(t.nodes)):
            return
        world.clock.advance(s=4)
    await world.sweep()
    await world.work()


async def test_a_death_at_any_step_of_renting_leaves_one_machine_with_an_owner(world: World, sweep: bool) -> None:
    """Decide and create, killed at one step after the other: exactly one machine, one run, one epoch for each job."""
    fuse = _mortal(world)

    async def rent() -> None:
        await world.control.loop.tick("test")
        await world.control.workers.work_once()

    tried = range(0, 100, 1 if sweep else 3)
    for steps in tried:
        job_id = await world.submit()
        fuse.arm(steps)
        died = await _survive(world, fuse, rent)
        await world.check_invariants()
        await rent()
        while (await world.newest_node()).provider_ref is None:
            world.clock.advance(s=4)
            await world.work()
        node_id = await world.node_of(job_id)
        assert len(world.cloud.of_label(node_id)) == 1, f"killed after {steps} steps"
        await world.boot(node_id)
        await world.report(node_id, "running")
        assert (await world.job(job_id)).epoch == 1
        await world.report(node_id, "exited", exit_code=0)
        await world.work()
        if not died:
            break
    assert 10 < steps < 99
    assert len(world.cloud.rented) == tried.index(steps) + 1


async def test_a_death_at_any_step_of_starting_many_starts_each_of_them_once(
    world: World, monkeypatch: pytest.MonkeyPatch, sweep: bool
) -> None:
    """Seven jobs in batches of three, some of which were written when the process died: the next one starts the others,
    and each has one run, one epoch, and one machine with an owner. It dies at every third step, or at each."""
    monkeypatch.setattr("app.control.loop._ACTIONS_AT_ONCE", 3)
    fuse = _mortal(world)

    async def start() -> None:
        await world.control.loop.tick("test")

    begun = set[int]()
    for steps in range(0, 100, 1 if sweep else 3):
        jobs = [await world.submit() for _ in range(7)]
        fuse.arm(steps)
        died = await _survive(world, fuse, start)
        states = [(await world.job(job_id)).state for job_id in jobs]
        begun.add(states.count("starting"))
        await world.check_invariants()
        await start()
        await world.work()
        for job_id in jobs:
            assert len(world.cloud.of_label(await world.node_of(job_id))) == 1, f"killed after {steps} steps"
        assert [row.epoch for row in await world.rows(t.run_jobs) if row.job_id in jobs] == [1] * 7
        async with world.database.transaction() as connection:
            for job_id in jobs:
                await cancel_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())
        await _settle(world)
        if not died:
            break
    assert 10 < steps < 99
    assert begun == {0, 3, 6, 7}, "a batch is written whole or not at all"


@pytest.mark.parametrize(("fault", "stride"), [(None, 3), (Fault.LOST_REPLY, 4)])
async def test_a_death_at_any_step_of_ending_leaves_no_machine_and_the_bill_is_paid(
    world: World, fault: Fault | None, stride: int, sweep: bool
) -> None:
    """Terminate, killed at one step after the other, also of what was never seen: the ledger equals the bill."""
    fuse = _mortal(world)
    for steps in range(0, 100, 1 if sweep else stride):
        if fault is not None:
            world.cloud.create_faults = [fault]
        job_id = await world.submit()
        await world.control.loop.tick("test")
        await world.control.workers.work_once()
        async with world.database.transaction() as connection:
            await cancel_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())
        world.clock.advance(s=3)
        fuse.arm(steps)
        died = await _survive(world, fuse, world.work)
        await _settle(world)
        assert world.cloud.alive() == [], f"killed after {steps} steps"
        assert await world.ledger_sum() == world.cloud.bill().micros
        await world.check_invariants()
        if not died:
            break
    assert 10 < steps < 99


async def test_a_whole_story_survives_a_process_that_dies_again_and_again(world: World) -> None:
    """Each process lives for a few steps longer than the last; the job still runs once per epoch and ends once."""
    fuse = _mortal(world)
    world.cloud.create_faults = [Fault.LOST_REPLY, None, Fault.LOST_REQUEST]
    world.settings.serverless_budget_s = 20
    job_id = await world.submit()
    deaths = 0
    for lifetime in range(1, 400):
        fuse.arm(lifetime)
        try:
            for chore in (world.decide, world.work, world.check_heartbeats, world.sweep, world.meter):
                await chore()
        except asyncio.CancelledError:  # KilledError, or what is left of it for those who waited for a shared write
            deaths += 1
            fuse.disarm()
            await world.restart()
        fuse.disarm()
        await _agents(world, job_id)
        await world.check_invariants()
        world.clock.advance(s=2)
        nodes = await world.rows(t.nodes)
        if (await world.job(job_id)).state == "succeeded" and all(node.meter_closed for node in nodes):
            break
    job = await world.job(job_id)
    assert (job.state, job.moves) == ("succeeded", 1)
    assert deaths > 10
    assert world.cloud.alive() == []
    assert await world.ledger_sum() == world.cloud.bill().micros
    assert sum(row.amount_micros for row in await world.rows(t.ledger) if row.job_id == job_id) == job.spent_micros


async def _agents(world: World, job_id: str) -> None:
    """What the machines do meanwhile: call home, run, save when asked, and be done after a while on a rented node."""
    for node in await world.rows(t.nodes):
        if not any(rented.machine in world.cloud.alive() for rented in world.cloud.of_label(node.id)):
            continue
        if node.state in ("requested", "booting", "unknown") and node.token_sha256 is not None:
            await world.boot(node.id)
        if node.state in ("ready", "unreachable"):
            await world.beat(node.id)
            await _report(world, node, job_id)


async def _report(world: World, node: Any, job_id: str) -> None:
    runs = {row.id: row for row in await world.rows(t.runs)}
    held = [row for row in await world.rows(t.allocations) if row.node_id == node.id and row.to_ms is None]
    for allocation in held:
        run = runs[allocation.run_id]
        if run.state in ("assigned", "starting"):
            await world.report(node.id, "running")
        elif run.state == "stopping":
            await world.report(node.id, "exited", exit_code=0, saved_after_stop=True)
        elif node.tier == "marketplace" and world.clock.now_ms() - run.running_ms > 10_000:
            await world.report(node.id, "exited", exit_code=0)
