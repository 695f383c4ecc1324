"""GET /metrics beside a long past: it is asked for every few seconds, and looks at nothing that is settled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import insert, text, update

from app.core.model.health import Chore
from app.core.model.job import JobState
from app.db import tables as t
from app.db.counting.series import CountedSeries
from app.services.reading.fleet_metrics import FleetWatch
from tests.control.world import World
from tests.scale.ground import MANY, Ground, waiting_job
from tests.scale.statements import Statements, counted

_FEW_ROWS = 100
_FEW = 20


async def _look(world: World) -> Statements:
    with counted() as sent:
        fleet = await FleetWatch(world.database, world.clock).look()
    assert fleet.known
    assert sum(one.count for one in fleet.happened[CountedSeries.JOBS_ENDED].values()) == 2 * MANY
    return sent


def _scans(plan: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Tables, and the rows that were looked at in them."""
    if "Relation Name" in plan:
        looked = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield plan["Relation Name"], looked * plan["Actual Loops"]
    for inner in plan.get("Plans", ()):
        yield from _scans(inner)


async def test_a_scrape_reads_no_more_because_more_is_over(world: World, ground: Ground) -> None:
    """A hundred thousand finished jobs and twenty thousand machines that are gone are counted, and not looked at."""
    ends = {"state": JobState.SUCCEEDED, "first_running_ms": t.jobs.c.submitted_ms + 5, "ended_ms": 10 * MANY}
    async with world.database.transaction() as connection:
        await connection.execute(update(t.jobs).where(t.jobs.c.id >= waiting_job(0)).values(**ends))
        await connection.execute(insert(t.counts_until).values(series="of another release", until_ms=1))
    async with world.database._autocommit.connect() as connection:
        await connection.execute(text("VACUUM ANALYZE"))
    assert await world.control.do(Chore.HOUSEKEEPING) == 0
    sent = await _look(world)
    assert sent.count <= _FEW
    looked_at: dict[str, float] = {}
    async with world.database.transaction() as connection:
        for statement, given in sent.sent:
            if statement.split()[0] not in {"SELECT", "WITH"}:
                continue  # a savepoint
            explained = await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", given)
            found = explained.scalar_one()
            for table, rows in _scans((json.loads(found) if isinstance(found, str) else found)[0]["Plan"]):
                looked_at[table] = max(rows, looked_at.get(table, 0))
    assert looked_at.keys() >= {"jobs", "nodes", "moves", "ticks", "provider_operations", "counts"}
    assert {table: rows for table, rows in looked_at.items() if rows > _FEW_ROWS} == {}
