"""A wish for more machines that is withdrawn while they come, for a job that trains on one."""

from __future__ import annotations

import pytest

from app.db import tables as t
from app.db.engine import Database
from tests.conftest import CountingIds, ManualClock
from tests.control.test_gang_resizes import Resizer
from tests.control.world import World, make_settings
from tests.seeds import seed_node


@pytest.mark.parametrize("policy", ["sjf", "tiresias-l", "cornucopia", "allpass"])
async def test_from_several_back_to_the_one_that_it_has_nothing_more_comes(
    database: Database, database_url: str, clock: ManualClock, ids: CountingIds, policy: str
) -> None:
    """Whoever decides. What a policy has rented for the job, to move there, is that policy's."""
    world = World(database, make_settings(database_url, policy=policy), clock, ids)
    await world.open()
    single = Resizer(world, nodes=1)
    await single.trains()
    async with world.database.transaction() as connection:
        like = {"provider": "cloud", "tier": "conventional", "state": "booting", "rented_for_job_id": single.job_id}
        other = await seed_node(connection, world.project_id, **like)
    await single.resize(3)
    await world.decide()
    coming = set(await single.beside()) - {other}
    assert coming
    await single.resize(1)
    await world.decide()
    assert {(await world.node(node_id)).state for node_id in coming} <= {"draining", "terminating", "terminated"}
    told = [row.message for row in await world.rows(t.node_events) if row.node_id in coming]
    assert sum("its job is to stay on one machine" in text for text in told) == len(coming)
    assert not any("stay on one" in row.message for row in await world.rows(t.node_events) if row.node_id == other)
    assert (await single.asks(), await single.state()) == ((1, None), "running")
    assert len(await single.runs()) == 1
    await world.check_invariants()
