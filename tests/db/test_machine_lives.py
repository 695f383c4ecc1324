"""How long machines lived, read from the rows of nodes: what came up, by whom it was rented, the last days most."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from app.core.machine_lives import COUNTS_FOR_MS, HALF_LIFE_MS, Lived, MachineLives
from app.core.model.node import NodeState, Tier
from app.db.engine import Database
from app.db.nodes.machine_lives import lived_lately
from tests.seeds import T0_MS, new_id, seed_node, seed_project

HOUR_MS = 3_600_000
NOW_MS = T0_MS + 100 * HOUR_MS


def lost(after_h: float, *, ago_h: float = 0, **columns: Any) -> dict[str, Any]:
    """The columns of a machine that failed so long after it came up, so long ago."""
    lost_ms = NOW_MS - round(ago_h * HOUR_MS)
    ready_ms = lost_ms - round(after_h * HOUR_MS)
    times = {"ready_ms": ready_ms, "lost_ms": lost_ms, "ended_ms": lost_ms}
    return {"state": NodeState.TERMINATED, **times} | columns


def ended(after_h: float, *, ago_h: float = 0, **columns: Any) -> dict[str, Any]:
    """Of one that was given back."""
    return lost(after_h, ago_h=ago_h, lost_ms=None) | columns


async def read(database: Database, *rows: dict[str, Any], provider: str = "local") -> list[Lived]:
    """What is read after these rows of one project."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        for row in rows:
            await seed_node(connection, project_id, **row)
        return await lived_lately(connection, provider, now_ms=NOW_MS)


async def test_machines_that_failed_and_those_that_did_not(database: Database) -> None:
    """Two hours and a failure, three hours without one; an hour of one that is still there."""
    there = {"state": NodeState.READY, "ready_ms": NOW_MS - HOUR_MS}
    (kind,) = await read(database, lost(2), ended(3), there)
    assert (kind.provider, kind.tier, kind.gpu_type) == ("local", Tier.MARKETPLACE, "A100")
    assert (kind.lived_ms, kind.failures) == (6 * HOUR_MS, 1)


async def test_what_never_came_up_says_nothing(database: Database) -> None:
    """That machines do not start is another thing, and offers are passed over for it elsewhere."""
    assert await read(database, lost(0) | {"ready_ms": None}, {"state": NodeState.BOOTING}) == []


async def test_a_machine_that_ended_when_it_was_to_end_has_not_failed(database: Database) -> None:
    """Its lease was over. One that failed before has."""
    seen = await read(database, lost(2, ends_ms=NOW_MS - 1), lost(2, ends_ms=NOW_MS + 1))
    assert [one.failures for one in seen] == [1]


async def test_a_failed_machine_counts_once_however_long_its_end_takes(database: Database) -> None:
    """It lived until it failed; that its provider still lists it an hour later is not more life."""
    seen = await read(database, lost(2, ago_h=1, state=NodeState.TERMINATING, ended_ms=None))
    assert seen[0].lived_ms == pytest.approx(2 * HOUR_MS * 0.5 ** (HOUR_MS / HALF_LIFE_MS))


async def test_a_day_ago_counts_half_and_a_week_ago_nothing(database: Database) -> None:
    (kind,) = await read(database, lost(2, ago_h=24))
    assert kind.lived_ms == pytest.approx(HOUR_MS)
    assert kind.failures == pytest.approx(0.5)
    assert len(await read(database, lost(2, ago_h=COUNTS_FOR_MS / HOUR_MS + 1))) == 1


async def test_kinds_and_projects_are_told_apart(database: Database) -> None:
    h100, other = lost(1, gpu_type="H100"), lost(1, provider="other")
    seen = await read(database, lost(1), h100, other, ended(1, tier=Tier.CONVENTIONAL))
    assert {(one.tier, one.gpu_type) for one in seen} == {
        (Tier.MARKETPLACE, "A100"),
        (Tier.MARKETPLACE, "H100"),
        (Tier.CONVENTIONAL, "A100"),
    }
    seen = await read(database, lost(1))
    assert len({one.project_id for one in seen if one.gpu_type == "A100" and one.tier == Tier.MARKETPLACE}) == 2


@pytest.mark.parametrize(
    "row",
    [
        lost(1, tier="lunar"),
        lost(1, lost_ms=0, ended_ms=NOW_MS),
        lost(1, lost_ms=2**62, ended_ms=NOW_MS),
        lost(1, ready_ms=0),
        lost(1, ready_ms=2**62),
        lost(1, state=NodeState.READY, lost_ms=-(2**62), ended_ms=None),
        lost(1, gpu_type=""),
        lost(1, ends_ms=0),
    ],
    ids=[
        "another tier",
        "lost at zero",
        "lost later",
        "ready at zero",
        "ready later",
        "before all time",
        "",
        "ends at 0",
    ],
)
async def test_a_bad_row_takes_nothing_from_the_others(database: Database, row: dict[str, Any]) -> None:
    """Offers are listed with what is learned: a row that cannot be reckoned with must not keep them from it."""
    await read(database, lost(2), lost(2))
    seen = await read(database, row)
    assert MachineLives(seen).mean_ms("local", Tier.MARKETPLACE, "A100") >= 0
    assert sum(one.failures for one in seen if one.gpu_type == "A100") >= 2
    assert all(0 <= one.lived_ms < 2**63 and 0 <= one.failures < 2**31 for one in seen)


async def test_fifty_thousand_old_machines_are_not_read(database: Database) -> None:
    """By the indexes of what is there and of what ended lately."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        await seed_node(connection, project_id, **ended(1, ago_h=24 * 30))
        await connection.execute(
            text(
                "INSERT INTO nodes SELECT (jsonb_populate_record(n, jsonb_build_object('id', 'node_old_' || i))).* "
                "FROM nodes n, generate_series(1, 50000) AS i WHERE n.project_id = :project_id"
            ),
            {"project_id": project_id},
        )
        await seed_node(connection, project_id, id=new_id("node"), **lost(1))
        await connection.execute(text("ANALYZE nodes"))
        before = await _rows_read(connection)
        (kind,) = await lived_lately(connection, "local", now_ms=NOW_MS)
        assert kind.failures == 1
        assert await _rows_read(connection) - before < 100


async def _rows_read(connection: Any) -> int:
    """Of the table, by this transaction."""
    found = await connection.execute(
        text(
            "SELECT pg_stat_get_xact_tuples_returned('nodes'::regclass)"
            " + pg_stat_get_xact_tuples_fetched('nodes'::regclass)"
            " + coalesce((SELECT sum(pg_stat_get_xact_tuples_fetched(indexrelid)) FROM pg_index"
            " WHERE indrelid = 'nodes'::regclass), 0)"
        )
    )
    return int(found.scalar_one())
