"""A run that trains is told to look at its own task first; what it finds is kept, and harms nobody."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from allpass.wire.agent import ExitReport, ProfileFound, RunReport
from app.core.model.run import RunPurpose, RunState
from app.db import tables as t
from app.db.engine import Database
from app.db.runs.desired_state import orders
from app.db.tables import profiles
from app.services.merging.own_profile import is_to_look
from app.services.runs.apply_run_reports import apply_run_reports
from tests.conftest import CountingIds, ManualClock
from tests.control.test_profiling import PROFILE, recipe_job, seen
from tests.control.world import World, make_settings


@pytest.fixture
async def world(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> World:
    """Jobs of the built-in recipe, under `allpass` with merging."""
    world = World(database, make_settings(database_url, policy="allpass", merge_modes="in-turn,together"), clock, ids)
    await world.open()
    return world


async def placed(world: World) -> tuple[str, str]:
    """A job that came alone and has a place to train, and its node."""
    job_id = await recipe_job(world)
    await world.decide()
    await world.work()
    node_id = await world.node_of(job_id)
    await world.boot(node_id)
    return job_id, node_id


async def told_to_look(world: World, node_id: str, **changes: Any) -> bool:
    """Whether the one run of the node is to look at its task, as its order is, or would be with these changes."""
    settings = world.settings.model_copy(update=changes.pop("settings", {}))
    async with world.database.transaction() as connection:
        (order,) = await orders(connection, node_id)
        return await is_to_look(connection, settings, replace(order, **changes), now_ms=world.clock.now_ms())


async def tell(world: World, node_id: str, *, phase: str = "running", **changes: Any) -> bool:
    """The agent says what the run has found."""
    async with world.database.transaction() as connection:
        held = select(t.run_jobs).join(t.allocations, t.allocations.c.run_id == t.run_jobs.c.run_id)
        run = (await connection.execute(held.where(t.allocations.c.node_id == node_id))).one()
    values: dict[str, Any] = {"run_id": run.run_id, "job_id": run.job_id, "epoch": run.epoch, "phase": phase}
    found = ProfileFound.model_construct(**(PROFILE | changes.pop("profile", {})))  # as JSON, it may hold NaN
    report = RunReport.model_construct(**(values | changes), profile=found)
    now_ms = world.clock.now_ms()
    return await apply_run_reports(world.database, world.ids, node_id, [report], now_ms=now_ms, fault_budget=3)


async def test_a_job_that_begins_to_train_looks_first_and_is_known(world: World) -> None:
    """It is told so until its code runs; what it says is in the next decision, and its course is that of any job. Said
    again it changes nothing. Nobody with these rows need look any more."""
    job_id, node_id = await placed(world)
    assert await told_to_look(world, node_id)
    assert await tell(world, node_id)
    assert not await tell(world, node_id)
    (row,) = await world.rows(profiles)
    assert (row.project_id, row.pull, row.rows, row.tokens) == (world.project_id, PROFILE["pull"], 64, 4096)
    view = await seen(world, job_id)
    assert view.recipe is not None
    assert (view.recipe.pull, view.state.value) == (tuple(PROFILE["pull"]), "running")  # type: ignore[arg-type]  # a list of numbers
    assert not await told_to_look(world, node_id, state=RunState.STARTING)
    await world.check_invariants()


async def test_nobody_looks_who_need_not(world: World) -> None:
    """Not without merging, in a pair, in a run that profiles, once its code runs, in a job that will soon be done, with
    progress, or after a look in vain or a fault."""
    job_id, node_id = await placed(world)
    for changes in (
        {"settings": {"merge_modes": ""}},
        {"companion": "run_z"},
        {"companion_of": "run_z"},
        {"purpose": RunPurpose.PROFILE},
        {"state": RunState.RUNNING},
        {"state": RunState.STANDBY},
        {"job_id": "job_nobody"},
    ):
        assert not await told_to_look(world, node_id, **changes), changes
    for row in (
        {"profile_tries": 1},
        {"faults": 1},
        {"memory_retries": 1},
        {"checkpoint_step": 5},
        {"ran_ms": 5},
        {"sharing": False},
    ):
        before = {name: getattr(await world.job(job_id), name) for name in row}
        await world.set_job(job_id, **row)
        assert not await told_to_look(world, node_id), row
        await world.set_job(job_id, **before)
    await world.set_job(job_id, total_steps=100, predicted_step_ms=1_999.0)
    assert not await told_to_look(world, node_id)
    await world.set_job(job_id, predicted_step_ms=2_000.0)
    assert await told_to_look(world, node_id)
    assert not await told_to_look(world, node_id, settings={"policy_rules": {"merge_own_least_ms": 200_001.0}})


@pytest.mark.parametrize(
    "changes",
    [
        {"profile": {"pull": [math.nan, 1.0]}},
        {"profile": {"pull": [0.0, 0.0]}},
        {"profile": {"fisher": [-1.0]}},
        {"epoch": 7},
        {"run_id": "run_other"},
    ],
    ids=["nan", "zero", "negative", "another epoch", "another run"],
)
async def test_what_cannot_be_believed_is_left_out(world: World, changes: dict[str, Any]) -> None:
    """The job trains on."""
    job_id, node_id = await placed(world)
    assert await world.report(node_id, "running")
    await tell(world, node_id, **changes)
    assert await world.rows(profiles) == []
    job = await world.job(job_id)
    assert (job.state, job.profile_tries, job.faults) == ("running", 0, 0)


async def test_a_run_may_say_it_with_its_end(world: World) -> None:
    """A job may be over before anything else is heard of it; what comes of a run that is over is ignored."""
    job_id, node_id = await placed(world)
    end = {"phase": "exited", "exit": ExitReport(exit_code=0)}
    assert await tell(world, node_id, **end)
    assert (await world.job(job_id)).state == "succeeded"
    assert len(await world.rows(profiles)) == 1
    await tell(world, node_id, **end, profile={"pull": [9.0]})
    assert [row.pull for row in await world.rows(profiles)] == [PROFILE["pull"]]
    await world.check_invariants()
