"""Whatever agents, owners, deaths and clocks do to a move, in whatever order: one run holds the job, it ends once, and
no machine is left without an owner."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.db.engine import Database, make_engine
from tests.conftest import CountingIds, ManualClock
from tests.control.chaos import Chaos
from tests.control.moving import Moving
from tests.control.world import World, make_settings
from tests.crashes.stage import empty

EXITS = st.sampled_from(
    [
        {"exit_code": 0},
        {"exit_code": 75, "saved_after_stop": True},
        {"signal": 9},
        {"environment_error": "no space left"},
        {},
    ]
)
WHO = st.sampled_from(["source", "target", "source", "target", "first", "last"])
STEPS = st.integers(1, 60)
ACTIONS = st.one_of(
    st.tuples(st.just("say"), WHO, st.sampled_from(["preparing", "prepared", "prepared", "running"]), STEPS),
    st.tuples(st.just("exit"), WHO, EXITS, STEPS),
    st.tuples(st.just("save"), WHO, STEPS, st.booleans()),
    st.tuples(st.just("behave"), WHO),
    st.tuples(st.just("behave"), WHO),
    st.tuples(st.just("lose"), WHO),
    st.tuples(st.just("migrate")),
    st.tuples(st.just("owner"), st.sampled_from(["pause", "resume", "cancel", "cap"])),
    st.tuples(st.just("time"), st.sampled_from([1, 20, 200, 1_000])),
    st.tuples(st.just("decide")),
    st.tuples(st.just("restart")),
)


@pytest.mark.timeout(300)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, min_size=5, max_size=14))
def test_no_order_of_events_breaks_a_move(database_url: str, tmp_path: Path, actions: list[tuple[Any, ...]]) -> None:
    """Random reports, saves, deaths, wishes and restarts: every promise holds after each, and the job still ends."""

    async def tell() -> None:
        database = Database(make_engine(database_url, pool_size=4, timeout_s=10))
        clock = ManualClock()
        try:
            await empty(database)
            world = World(database, make_settings(database_url), clock, CountingIds(clock))
            await world.open()
            moving = Moving(world, tmp_path)
            await moving.begin()
            chaos = Chaos(moving)
            for kind, *how in actions:
                await chaos.play(kind, *how)
            await chaos.settle()
        finally:
            await database.close()

    asyncio.run(tell())
