"""The policy itself, over the real database: which jobs it merges, and how their story goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.packing import SCRIPT_NAME
from app.db.engine import Database
from app.db.merging.recipes import task_of
from app.db.tables import merges, profiles
from tests.conftest import CountingIds, ManualClock
from tests.control.merging import Merging
from tests.control.world import World, make_settings
from tests.seeds import T0_MS, seed_app, seed_job

PLAIN = {"model": "tiny", "task": "classification", "sequence_length": 32, "target": {"eval_accuracy": 0.9}}
STEP_MS = 1_000.0
STEPS = 3_600


@pytest.fixture
async def world(database: Database, database_url: str, clock: ManualClock, ids: CountingIds) -> AsyncIterator[World]:
    settings = make_settings(database_url, policy="allpass", merge_modes="in-turn")
    world = World(database, settings, clock, ids)
    await world.open()
    yield world


async def fine_tuning(world: World, bundle: str, **changes: Any) -> str:
    """A job of the recipe that takes an hour; `bundle`: what its rows are."""
    now_ms = world.clock.now_ms()
    row = {"parameters": PLAIN, "total_steps": STEPS, "predicted_step_ms": STEP_MS, "start": "auto", **changes}
    row |= {"id": world.ids.new("job"), "submitted_ms": now_ms, "deadline_ms": now_ms + 86_400_000}
    async with world.database.transaction() as connection:
        app = await seed_app(connection, world.project_id, entrypoint=SCRIPT_NAME, bundle_sha256=bundle * 64)
        return await seed_job(connection, world.project_id, app, **row)


async def profiled(world: World, job_id: str, *pull: float) -> None:
    async with world.database.transaction() as connection:
        task = await task_of(connection, job_id)
        assert task is not None
        row = {"project_id": task[0], "key": task[1], "fisher": [1.0] * len(pull), "pull": list(pull)}
        await connection.execute(profiles.insert().values(rows=64, tokens=64, made_ms=T0_MS, **row))


async def test_a_job_starts_where_a_similar_one_ends(world: World, tmp_path: Path) -> None:
    """One that trains will soon be done: the policy lets the other one wait for it, and places it when it has ended."""
    merging = Merging(world, tmp_path)
    lead, companion = merging.lead, merging.companion
    lead.job_id = await fine_tuning(world, "a")
    await profiled(world, lead.job_id, 1.0, 0.5)
    await merging.train(lead)
    world.clock.advance(s=3_000)
    assert not await lead.says(lead.source, "running", step=3_000)
    companion.job_id = await fine_tuning(world, "b")
    await profiled(world, companion.job_id, 1.0, 0.6)
    await world.decide()
    row = await merging.row()
    assert (row.lead_job_id, row.companion_job_id) == (lead.job_id, companion.job_id)
    assert (row.mode, row.state) == ("in-turn", "open")
    assert row.score > 0.9
    assert row.gain > 0.1
    await world.decide()
    told = await world.job(companion.job_id)
    assert (told.state, told.wait_reason) == (
        "queued",
        f"starts where {lead.job_id} ends, from what that has learned",
    )
    await merging.finish_lead(STEPS)
    await merging.train(companion)
    assert (await world.job(companion.job_id)).state == "running"
    await world.check_invariants()


async def both_are_placed(world: World, folder: Path, *job_ids: str) -> None:
    """Each by itself."""
    for job_id in job_ids:
        apart = Merging(world, folder)
        apart.lead.job_id = job_id
        await apart.train(apart.lead)
    assert await world.rows(merges) == []


@pytest.mark.parametrize(
    ("changes", "pull"),
    [({"sharing": False}, (1.0, 0.6)), ({"parameters": {**PLAIN, "model": "other"}}, (1.0, 0.6)), ({}, (-1.0, -0.6))],
    ids=["does not share", "another model", "pulls the other way"],
)
async def test_others_are_not(world: World, tmp_path: Path, changes: dict[str, Any], pull: tuple[float, ...]) -> None:
    """Each is given a place of its own at once."""
    one, other = await fine_tuning(world, "a"), await fine_tuning(world, "b", **changes)
    await profiled(world, one, 1.0, 0.5)
    await profiled(world, other, *pull)
    await both_are_placed(world, tmp_path, one, other)


async def test_nothing_is_merged_unless_the_installation_says_so(world: World, tmp_path: Path) -> None:
    """The default."""
    world.settings.merge_modes = ""
    world.control = world.new_control()
    await world.restart()
    one, other = await fine_tuning(world, "a"), await fine_tuning(world, "b")
    await profiled(world, one, 1.0, 0.5)
    await profiled(world, other, 1.0, 0.6)
    await both_are_placed(world, tmp_path, one, other)
