"""Actions that are enacted together write what they would write one after the other, whatever is between them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.control import enact as enacting
from app.control.dropping import Dropped
from app.control.enact import enact
from app.control.placing import Placement, place
from app.db.engine import Database, make_engine
from tests.conftest import CountingIds, ManualClock
from tests.control.batching import REAL, lay, layouts_for, plan_about, taken_back, with_ranks, written
from tests.control.fake_provider import FakeProvider
from tests.control.poison import _REFUSE
from tests.control.world import World, make_settings


async def _one_by_one(
    connection: AsyncConnection, context: Any, actions: Sequence[Placement], *rest: Any, **named: Any
) -> list[Dropped]:
    """In place of `place`: everything is read anew before each action, and written after it."""
    every = [await place(connection, context, [action], *rest, **named) for action in actions]
    return [dropped for some in every for dropped in some]


async def _both_ways(database_url: str, chance: random.Random, *, poisoned: str | None) -> None:
    """`poisoned`: rows of this table that name one of the jobs, or nodes, cannot be written."""
    engine, clock = make_engine(database_url, pool_size=4, timeout_s=60), ManualClock()
    try:
        world = World(Database(engine), make_settings(database_url, vast_api_key="k" * 20), clock, CountingIds(clock))
        world.other_clouds = [FakeProvider(clock, name=REAL)]
        context = world.new_control().context
        async with taken_back(engine) as connection:
            ground = await lay(connection, chance, clock)
            plan, layouts = plan_about(chance, ground), layouts_for(chance, ground)
            if poisoned is not None:
                plan = [action for action in plan if isinstance(action, Placement)]
                word = chance.choice(ground.nodes if poisoned == "allocations" else ground.jobs)
                await connection.execute(text(_REFUSE))
                trigger = f"CREATE TRIGGER poison BEFORE INSERT OR UPDATE ON {poisoned} FOR EACH ROW"
                await connection.execute(text(f"{trigger} EXECUTE FUNCTION refuse('{word}')"))

            async def enacted(on: AsyncConnection) -> Sequence[Dropped]:
                return await enact(on, context, plan, now_ms=clock.now_ms(), layouts=layouts)

            together = await written(connection, context, clock, enacted)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(enacting, "place", _one_by_one)
                apart = await written(connection, context, clock, enacted)
    finally:
        await engine.dispose()
    assert together[0] == apart[0]
    if poisoned is None:
        assert together[1] == apart[1]
    else:
        assert with_ranks(together[1]) == with_ranks(apart[1])


@pytest.mark.timeout(300)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(chance=st.randoms(use_true_random=False))
def test_together_the_same_is_written_as_one_by_one(database_url: str, chance: random.Random) -> None:
    """Whatever a plan asks for: two starts of a job, GPUs that are taken, jobs that are over by now, pairs, limits and
    budgets that are reached half-way. Every table holds the same, ids included, the same is dropped in the same words,
    and the same are woken."""
    asyncio.run(_both_ways(database_url, chance, poisoned=None))


@pytest.mark.timeout(300)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    chance=st.randoms(use_true_random=False), table=st.sampled_from(["jobs", "job_events", "run_jobs", "allocations"])
)
def test_what_cannot_be_written_harms_nobody_else(database_url: str, chance: random.Random, table: str) -> None:
    """The same with rows that the database refuses: what was taken back has used up ids, and nothing else differs.
    Actions that are not placed together are left out: of those, one that cannot be told fails the transaction."""
    asyncio.run(_both_ways(database_url, chance, poisoned=table))
