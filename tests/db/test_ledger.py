"""A meter that reads what is unread charges what one charges that looks at everything."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.billing import LedgerLine, Meter, MeterReading, Occupancy, split
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, NodeState
from app.db import tables as t
from app.db.engine import Database
from app.db.money.ledger import lock_to_meter, payers_of, read_meter
from tests.seeds import T0_MS, seed_job, seed_node, seed_project, seed_run

_PRICE = Money(3_600_001)  # a thousandth of a cent per millisecond, and a little that has to be rounded
_GPUS = 4
_RULE = BillingRule(60_000, BillingStart.READY, 120_000)


@dataclass
class Life:
    """What happens to one machine, in milliseconds since it began to be billed."""

    held: list[Occupancy]
    read_ms: list[int]  # when the meter is read while it lives
    ready_ms: int
    ended_ms: int  # by the provider's own clock: may lie before what was read last
    billed: Money | None


def a_life(chance: random.Random, job_ids: list[str]) -> Life:
    ended_ms = chance.randrange(1, 400)
    moments = sorted(chance.choices(range(ended_ms + 1), k=2 * len(job_ids)))
    held = []
    for place, job_id in enumerate(job_ids):
        begins, ends = sorted(chance.sample(moments, 2))
        gpus, tokens = chance.randrange(1, 3), chance.randrange(3)
        held.append(Occupancy(f"run_{place}", job_id, gpus, begins, max(ends, begins + 1), None, tokens))
    read_ms = sorted(chance.choices([*moments, *range(ended_ms + 1)], k=chance.randrange(6)))
    early = chance.random() < 0.4 and read_ms
    return Life(
        held,
        read_ms,
        ready_ms=chance.choice([0, 0, chance.randrange(ended_ms)]),
        ended_ms=max(0, read_ms[-1] - chance.randrange(20)) if early else ended_ms,
        billed=chance.choice([None, None, Money(chance.randrange(1, 10**6))]),
    )


def as_known(held: list[Occupancy], at_ms: int) -> list[Occupancy]:
    """Who has come by then, and who has left."""
    return [
        replace(one, to_ms=one.to_ms if one.to_ms is not None and one.to_ms <= at_ms else None)
        for one in held
        if one.from_ms <= at_ms
    ]


def charged_by_all(life: Life, job_id: str) -> list[LedgerLine]:
    """The lines of a meter that is given everybody who was ever there."""
    meter = Meter(_RULE, _PRICE, _GPUS, T0_MS, T0_MS + life.ready_ms, job_id)
    lines: list[LedgerLine] = []
    for at_ms, final in [*((at_ms, False) for at_ms in life.read_ms), (life.ended_ms, True)]:
        seen = life.held if final else as_known(life.held, at_ms)
        shifted = [
            replace(one, from_ms=T0_MS + one.from_ms, to_ms=None if one.to_ms is None else T0_MS + one.to_ms, tokens=0)
            for one in seen
        ]
        billed = life.billed if final else None
        reading: MeterReading = split(meter, shifted, until_ms=T0_MS + at_ms, final=final, billed=billed)
        lines += reading.lines
        meter = replace(meter, metered_until_ms=reading.metered_until_ms, metered=reading.metered)
    return lines


async def test_what_is_charged_does_not_depend_on_what_is_looked_at(database: Database) -> None:
    """To the micro-dollar and the millisecond: whoever comes, goes, or has gone, and whenever the meter is read; also
    where the provider's end lies before what was read already. Nobody has to be locked after the node is."""
    for seed in range(30):
        await _play(database, seed)


async def _play(database: Database, seed: int) -> None:
    chance = random.Random(seed)
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        jobs = [await seed_job(connection, project_id) for _ in range(chance.randrange(7))]
        rented_for = await seed_job(connection, project_id)
    life = a_life(chance, jobs)
    async with database.transaction() as connection:
        node_id = await _node(connection, project_id, rented_for, life)
        runs = [await seed_run(connection, project_id, one.job_id, node_id, created_ms=T0_MS) for one in life.held]
        await connection.execute(t.allocations.delete())
        await connection.execute(t.node_heartbeats.delete())
        await connection.execute(insert(t.node_heartbeats).values(node_id=node_id, at_ms=0, report={}))
        for at_ms in life.read_ms:
            await _now(connection, node_id, runs, life, at_ms)
            await read_meter(connection, node_id, now_ms=T0_MS + at_ms)
        now_ms = T0_MS + max([life.ended_ms, *life.read_ms]) + 5
        await _now(connection, node_id, runs, life, 10**6)
        told_ms = T0_MS + life.ended_ms
        await lock_to_meter(connection, [node_id], until_ms=min(told_ms, now_ms))
        locked = await payers_of(connection, [node_id], until_ms=min(told_ms, now_ms))
        over = {"state": NodeState.TERMINATED, "billed_to_ms": told_ms}
        await connection.execute(update(t.nodes).where(t.nodes.c.id == node_id).values(**over))
        assert await payers_of(connection, [node_id], until_ms=now_ms) <= locked
        await read_meter(connection, node_id, now_ms=now_ms, billed=life.billed)
        rows = (await connection.execute(select(t.ledger).where(t.ledger.c.node_id == node_id))).all()
    named = dict(zip(runs, (one.run_id for one in life.held), strict=True))
    written = [
        (row.payer, named.get(row.run_id), row.job_id, row.from_ms, row.to_ms, row.amount_micros) for row in rows
    ]
    expected = [
        (one.payer, one.run_id, one.job_id, one.from_ms, one.to_ms, one.amount.micros)
        for one in charged_by_all(life, rented_for)
    ]
    assert sorted(written, key=str) == sorted(expected, key=str), f"seed {seed}"


async def _node(connection: AsyncConnection, project_id: str, job_id: str, life: Life) -> str:
    return await seed_node(
        connection,
        project_id,
        gpu_count=_GPUS,
        price_micros_per_hour=_PRICE.micros,
        billing_unit_ms=_RULE.unit_ms,
        billing_starts=_RULE.starts,
        billing_minimum_ms=_RULE.minimum_ms,
        billed_from_ms=T0_MS,
        ready_ms=T0_MS + life.ready_ms,
        rented_for_job_id=job_id,
    )


async def _now(connection: AsyncConnection, node_id: str, runs: list[str], life: Life, at_ms: int) -> None:
    """The rows as they are at that moment, with the node's newest heartbeat."""
    await connection.execute(t.allocations.delete())
    for run_id, one in zip(runs, life.held, strict=True):
        for known in as_known([one], at_ms):
            await connection.execute(
                insert(t.allocations).values(
                    id=f"aloc_of_{run_id}",
                    run_id=run_id,
                    node_id=node_id,
                    gpu_indices=list(range(one.gpus)),
                    from_ms=T0_MS + one.from_ms,
                    to_ms=None if known.to_ms is None else T0_MS + known.to_ms,
                )
            )
    await connection.execute(update(t.node_heartbeats).values(at_ms=T0_MS + at_ms))
