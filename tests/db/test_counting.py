"""Sums for monitoring in the database: money by tier is the ledger's, and the past is not counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import Tier
from app.db.counting.counts import read_counts
from app.db.counting.series import SOURCES, CountedSeries
from app.db.engine import Database, make_engine
from app.db.migrate import downgrade, upgrade
from app.db.tables import counts_until, jobs, ledger, metadata, nodes, tier_spending
from tests.databases import execute
from tests.seeds import T0_MS, seed_job, seed_node, seed_project


async def _kept(connection: AsyncConnection) -> Counter[tuple[str, str, str]]:
    rows = await connection.execute(select(tier_spending))
    return Counter({(row.project_id, row.tier, row.provider): int(row.amount_micros) for row in rows})


async def _by_hand(connection: AsyncConnection) -> Counter[tuple[str, str, str]]:
    key = (ledger.c.project_id, nodes.c.tier, nodes.c.provider)
    joined = select(*key, func.sum(ledger.c.amount_micros)).join(nodes, nodes.c.id == ledger.c.node_id)
    rows = await connection.execute(joined.group_by(*key))
    return Counter({(row[0], row[1], row[2]): int(row[3]) for row in rows})


def _line(project_id: str, node_id: str, micros: int) -> dict[str, Any]:
    times = {"from_ms": T0_MS, "to_ms": T0_MS + 1, "amount_micros": micros}
    return {"project_id": project_id, "node_id": node_id, "payer": "boot", **times}


async def test_what_is_spent_by_tier_is_the_ledger(database: Database) -> None:
    """Whoever adds lines, and were somebody to change or delete them by hand."""
    async with database.transaction() as connection:
        lines = []
        for _ in range(2):
            project_id = await seed_project(connection)
            for tier in (Tier.SERVERLESS, Tier.MARKETPLACE):
                node_id = await seed_node(connection, project_id, tier=tier)
                lines += [_line(project_id, node_id, micros) for micros in (1, 2**62, 2**62)]
        await connection.execute(insert(ledger), lines[:5])
        await connection.execute(insert(ledger), lines[5:])
        assert await _kept(connection) == await _by_hand(connection)
        assert sum((await _kept(connection)).values()) == 4 * (2**63 + 1)
        await connection.execute(update(ledger).where(ledger.c.amount_micros == 1).values(amount_micros=7))
        await connection.execute(delete(ledger).where(ledger.c.node_id == lines[0]["node_id"]))
        assert +await _kept(connection) == await _by_hand(connection)


def test_beside_a_past_counts_begin_with_the_migration_and_money_with_the_first_line(database_url: str) -> None:
    """So that no scrape reads years; what the release before does from then on is counted."""

    async def seed() -> None:
        async with database.transaction() as connection:
            project_id = await seed_project(connection)
            await seed_job(connection, project_id, state="succeeded", first_running_ms=1, ended_ms=2)
            node_id = await seed_node(connection, project_id, metered_micros=500)
            await connection.execute(insert(ledger), [_line(project_id, node_id, 500)])
        await database.close()

    async def look() -> None:
        async with database.transaction() as connection:
            until = {row.series for row in await connection.execute(select(counts_until))}
            assert until == set(CountedSeries) == set(SOURCES)
            assert await read_counts(connection) == []
            assert await _kept(connection) == await _by_hand(connection) != Counter()
            later = (await connection.execute(select(func.max(counts_until.c.until_ms)))).scalar_one()
            await connection.execute(update(jobs).values(ended_ms=later))
            (row,) = await read_counts(connection)
            assert (row.series, row.number) == (CountedSeries.JOBS_ENDED, 1)
        await database.close()

    database = Database(make_engine(database_url, pool_size=1, timeout_s=30))
    asyncio.run(seed())
    downgrade(database_url, "0034")
    upgrade(database_url)
    database = Database(make_engine(database_url, pool_size=1, timeout_s=30))
    asyncio.run(look())


def test_what_is_counted_has_an_index_by_its_moment(database_url: str) -> None:
    """Else each scrape would read all of a table."""
    for source in SOURCES.values():
        every = metadata.tables[source.table].indexes
        indexes = [one for one in every if next(iter(one.columns)).name == source.at_ms]
        assert indexes, source
        (found,) = execute(database_url, f"SELECT to_regclass('{indexes[0].name}') IS NOT NULL")
        assert found[0]
