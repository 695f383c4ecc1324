"""All machines are about to end: each job saves and leaves, whatever it is doing, and is not blamed for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.db import tables as t
from app.db.decisions.leadership import CONTROL, release, take_over
from app.db.moves.held_places import held_places, read_rest
from app.services.moves.clear_places import ask_to_clear, clear_by_force
from tests.control.moving import REACHES, Moving
from tests.control.world import World

_WHY = "the stack is being stopped"


async def _ask(world: World, job_id: str) -> None:
    async with world.database.transaction() as connection:
        await ask_to_clear(connection, world.ids, job_id, _WHY, now_ms=world.clock.now_ms())


async def _force(world: World) -> None:
    async with world.database.transaction() as connection:
        held = await held_places(connection)
    for place in held:
        async with world.database.transaction() as connection:
            await clear_by_force(connection, world.ids, place.run_id, _WHY, now_ms=world.clock.now_ms())
    async with world.database.transaction() as connection:
        assert await held_places(connection) == []


async def test_a_job_whose_code_runs_saves_and_leaves_as_in_a_planned_move(world: World) -> None:
    """Asked twice, it is asked once. What it says of its end decides what it goes on from; no fault is counted."""
    job_id, node_id = await world.run_on_serverless()
    await _ask(world, job_id)
    await _ask(world, job_id)
    assert (await world.job(job_id)).state == "checkpointing"
    assert (await world.events(job_id)).count("checkpointing") == 1
    await world.report(node_id, "exited", exit_code=75, saved_after_stop=True)
    job = await world.job(job_id)
    assert (job.state, job.faults, job.moves) == ("waiting", 0, 1)


@pytest.mark.parametrize("exit_", [{"signal": 9}, {"signal": 15}, {"exit_code": 1}], ids=str)
async def test_a_job_that_cannot_save_is_not_blamed(world: World, exit_: dict[str, int]) -> None:
    """Killed when its grace was over, killed by the request itself, or ended by an error of its own handler."""
    job_id, node_id = await world.run_on_serverless()
    await _ask(world, job_id)
    await world.report(node_id, "exited", **exit_)
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("waiting", 0)
    async with world.database.transaction() as connection:
        assert (await read_rest(connection, job_id)).saved_step is None


async def test_a_job_whose_code_does_not_run_yet_gives_its_place_up_at_once(world: World) -> None:
    """Nothing could be saved; it is queued again, as if it had never been given the place."""
    job_id = await world.submit()
    await world.decide()
    assert (await world.job(job_id)).state == "starting"
    await _ask(world, job_id)
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("queued", 0)
    async with world.database.transaction() as connection:
        assert await held_places(connection) == []


@pytest.mark.parametrize("reached", list(REACHES))
@pytest.mark.parametrize("saves", [True, False], ids=["saves", "does not save"])
async def test_a_job_on_the_move_is_cleared_in_every_state_of_it(
    world: World, tmp_path: Path, reached: str, saves: bool
) -> None:
    """The move is called off; the job waits without a fault, and goes on from the newest checkpoint there is."""
    moving = Moving(world, tmp_path)
    await moving.begin()
    await REACHES[reached](moving)
    await _ask(world, moving.job_id)
    saved_step = None if reached in ("preparing", "saving") else 412
    if saves and reached in ("preparing", "saving"):
        await moving.saves(moving.source, 415, final=True)
        await moving.says(moving.source, "exited", 415, exit_code=75, saved_after_stop=True)
        saved_step = 415
    await _force(world)
    job = await world.job(moving.job_id)
    assert (job.state, job.faults) == ("waiting", 0)
    async with world.database.transaction() as connection:
        assert (await read_rest(connection, moving.job_id)).saved_step == saved_step
    assert {row.state for row in await world.rows(t.moves)} <= {"abandoned", "done"}
    assert {row.state for row in await world.rows(t.runs)} == {"ended"}
    await world.check_invariants()


async def test_nothing_is_decided_while_the_lead_is_taken_away(world: World) -> None:
    """The server's own leader is fenced at once, finds no lease to take, and leads again when it is given back."""
    job_id = await world.submit()
    async with world.database.transaction() as connection:
        lease = await take_over(connection, CONTROL, "who stops the stack", lease_s=60)
    leader = world.control.context.leader
    assert not await leader.step()
    assert await world.control.loop.tick("test") is None
    assert (await world.job(job_id)).state == "queued"
    async with world.database.transaction() as connection:
        await release(connection, lease)
    assert await leader.step()


@pytest.mark.parametrize("noticed", ["sweep", "heartbeats"])
async def test_an_outage_of_a_provider_uses_up_no_fault_budget(world: World, noticed: str) -> None:
    """Its machines are gone with it. However often that happens, the job goes on from its newest checkpoint."""
    job_id, node_id = await world.run_on_serverless()
    await world.set_job(job_id, faults=3)
    await world.check_heartbeats()
    world.cloud.die(node_id, outage=True)
    if noticed == "sweep":
        await world.sweep()
    for _ in range(8 if noticed == "heartbeats" else 0):
        world.clock.advance(s=5)
        await world.check_heartbeats()
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("waiting", 3)
