"""Arrivals, read from the rows of runs and nodes: which first runs count, and what a closed bill says of bytes."""

from __future__ import annotations

from typing import Any

from app.core.arrivals import Arrived
from app.core.model.node import Tier
from app.db.engine import Database
from app.db.nodes.arrivals import arrived_lately
from tests.seeds import T0_MS, seed_job, seed_node, seed_project, seed_run

NOW_MS = T0_MS + 100_000_000


READY_MS = NOW_MS - 600_000
BILLED = {
    "offer": {"traffic_micros_per_gb": 20_000},
    "meter_closed": True,
    "billed_from_ms": READY_MS,
    "billed_to_ms": READY_MS + 3_600_000,
    "metered_micros": 1_240_000,
}


async def read(database: Database, *runs: dict[str, Any], **columns: Any) -> list[Arrived]:
    """What is read of one machine with these runs."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        node_id = await seed_node(connection, project_id, **{"ready_ms": READY_MS, **columns})
        for run in runs:
            await seed_run(connection, project_id, await seed_job(connection, project_id), node_id, **run)
        return await arrived_lately(connection, "local", now_ms=NOW_MS)


def began(after_s: int, *, asked_s: int = -60, starting_s: int = 1) -> dict[str, Any]:
    """A run whose user code began so long after the machine was ready, and that was created then."""
    times = {"created_ms": asked_s, "starting_ms": starting_s, "running_ms": after_s}
    return {name: READY_MS + 1000 * value for name, value in times.items()}


async def test_the_first_run_of_a_machine_tells_how_long_it_took(database: Database) -> None:
    """A second one found all that it needs there."""
    (seen,) = await read(database, began(90), began(305, asked_s=300, starting_s=301))
    assert (seen.provider, seen.tier, seen.count, seen.took_ms, seen.micros) == (
        ("local", Tier.MARKETPLACE, 1, 90_000, 0)
    )


async def test_a_run_that_came_later_is_counted_from_then(database: Database) -> None:
    (seen,) = await read(database, began(100, asked_s=70, starting_s=71))
    assert seen.took_ms == 30_000


async def test_the_target_of_a_move_waits_for_its_source_and_says_nothing(database: Database) -> None:
    assert await read(database, began(90, starting_s=90)) == []


async def test_a_closed_bill_says_what_bytes_cost_where_they_are_charged(database: Database) -> None:
    """An hour at $0.74, and $1.24 on the bill."""
    (seen,) = await read(database, began(90), **BILLED)
    assert seen.micros == 500_000


async def test_without_a_charge_for_bytes_what_exceeds_the_hours_is_none(database: Database) -> None:
    (seen,) = await read(database, began(90), **(BILLED | {"offer": {}}))
    assert seen.micros == 0


async def test_what_is_long_ago_says_nothing(database: Database) -> None:
    assert await read(database, began(90), ready_ms=NOW_MS - 25 * 3_600_000) == []


async def test_a_machine_on_which_nobody_has_begun_says_nothing(database: Database) -> None:
    assert await read(database) == []
