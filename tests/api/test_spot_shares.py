"""What spot jobs pay of a pool's price: set by its owner, told beside the price, and billed from then on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import insert, select, update

from allpass.wire.pools import PoolRequest
from app.api.context import ApiContext
from app.core.billing import Meter, Occupancy, split
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.pool import JOINED
from app.core.spot_share import FULL
from app.db.money.ledger import read_meter
from app.db.offers.listed import replace_offers
from app.db.runs.evictable_runs import left_run
from app.db.tables import allocations, ledger, node_heartbeats, nodes, pool_spot_shares, pools, run_jobs, runs
from app.errors import InvalidInput
from app.services.pools.define_pool import define_pool
from tests.api.builders import add_job, add_run
from tests.api.conftest import Tenant, error_of, make_tenant
from tests.conftest import ManualClock
from tests.seeds import GIB

PRICE = 3.6  # dollars an hour: a thousand micro-dollars a second


@pytest.fixture
async def owner(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("owner",)) as made:
        yield made


async def settle(owner: Tenant, **settings: Any) -> dict[str, Any]:
    """Pool `lab` with these settings, made where there is none."""
    body = {"price_usd": PRICE, **settings}
    answer = await owner.http.post("/v1/pools", json={"name": "lab", **body})
    if answer.status_code == 409:
        answer = await owner.http.patch("/v1/pools/lab", json=body)
    assert answer.is_success, answer.text
    told: dict[str, Any] = answer.json()
    return told


class Place:
    """A machine of the pool, on which a job runs from now on."""

    def __init__(self, context: ApiContext, clock: ManualClock, node_id: str, run_id: str) -> None:
        self._context, self._clock, self.node_id, self.run_id = context, clock, node_id, run_id

    async def read(self, after_s: int = 0) -> None:
        """So much later its agent calls, and its meter is read."""
        self._clock.advance(s=after_s)
        now_ms = self._clock.now_ms()
        async with self._context.database.transaction() as connection:
            await connection.execute(node_heartbeats.delete().where(node_heartbeats.c.node_id == self.node_id))
            await connection.execute(insert(node_heartbeats).values(node_id=self.node_id, at_ms=now_ms, report={}))
            await read_meter(connection, self.node_id, now_ms=now_ms)

    async def end(self) -> None:
        now_ms = self._clock.now_ms()
        async with self._context.database.transaction() as connection:
            over = {"state": NodeState.TERMINATED, "billed_to_ms": now_ms}
            await connection.execute(update(nodes).where(nodes.c.id == self.node_id).values(**over))
            await connection.execute(update(allocations).values(to_ms=now_ms).where(allocations.c.to_ms.is_(None)))
            await read_meter(connection, self.node_id, now_ms=now_ms)

    async def row(self) -> Any:
        async with self._context.database.transaction() as connection:
            return (await connection.execute(select(nodes).where(nodes.c.id == self.node_id))).one()

    async def paid(self) -> list[tuple[int, int]]:
        """What is paid and what is not, line by line."""
        async with self._context.database.transaction() as connection:
            lines = select(ledger).where(ledger.c.node_id == self.node_id).order_by(ledger.c.from_ms, ledger.c.id)
            return [(row.amount_micros, row.discount_micros) for row in await connection.execute(lines)]


async def start(
    context: ApiContext, tenant: Tenant, clock: ManualClock, kind: str = "spot", **columns: Any
) -> tuple[str, Place]:
    job_id = await add_job(context, tenant, priority_class=kind)
    now_ms = clock.now_ms()
    of_node = {"provider": JOINED, "region": "lab", "price_micros_per_hour": round(PRICE * 10**6)}
    of_node |= {"billed_from_ms": now_ms, "ready_ms": now_ms, "rented_for_job_id": job_id, **columns}
    run_id, node_id = await add_run(
        context, tenant, job_id, tier=Tier.OWN, **{f"node_{name}": value for name, value in of_node.items()}
    )
    async with context.database.transaction() as connection:
        of = allocations.c
        await connection.execute(update(allocations).where(of.run_id == run_id).values(from_ms=now_ms))
    return job_id, Place(context, clock, node_id, run_id)


async def told(tenant: Tenant, job_id: str) -> tuple[int, int | None]:
    job = (await tenant.http.get(f"/v1/jobs/{job_id}")).json()
    return job["cost"], job["spot_discount"]


async def test_a_spot_job_is_billed_the_share_and_a_guaranteed_one_the_price(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """What each costs, what the project's bill says, and what the machine is worth: all of it adds up."""
    assert (await settle(owner, spot_share=0.3))["spot_share"] == 0.3
    spot_id, cheap = await start(context, tenant, clock)
    full_id, dear = await start(context, tenant, clock, "guaranteed")
    elsewhere_id, elsewhere = await start(context, tenant, clock, region="another")
    for place in (cheap, dear, elsewhere):
        await place.read(0)
    clock.advance(s=10)
    for place in (cheap, dear, elsewhere):
        await place.read()
    assert await told(tenant, spot_id) == (3_000, 7_000)
    assert await told(tenant, full_id) == (10_000, None)
    assert await told(tenant, elsewhere_id) == (10_000, None)
    used = (await tenant.http.get("/v1/usage")).json()
    assert (used["cost"], used["gpu_ms"]) == (23_000, 30_000)
    assert (await cheap.row()).metered_micros == 10_000
    assert (await tenant.http.get("/v1/jobs")).json()["data"][0]["spot_discount"] is None


async def test_a_changed_share_counts_from_that_moment_whenever_the_meter_is_read(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Of a machine that runs already, and whose price was fixed as it began. What was paid before stays as it was."""
    await settle(owner, spot_share=0.3)
    job_id, place = await start(context, tenant, clock)
    clock.advance(s=10)
    await settle(owner, spot_share=0.5, price_usd=99)
    clock.advance(s=10)
    await settle(owner, preference=3, price_usd=99)  # says nothing of the share
    await settle(owner, spot_share=1, price_usd=99)
    await place.read(10)
    assert await place.paid() == [(3_000, 7_000), (5_000, 5_000), (10_000, 0)]
    await settle(owner, spot_share=0)
    await place.read(5)
    await settle(owner, spot_share=0.000001)
    await place.read(1000)
    assert (await place.paid())[3:] == [(0, 5_000), (1, 999_999)]
    assert await told(tenant, job_id) == (18_001, 1_016_999)


async def test_no_micro_dollar_is_lost_however_often_the_meter_is_read(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """A third of a micro-dollar or so is over at each reading; what is carried survives from one to the next."""
    await settle(owner, spot_share=0.333333)
    job_id, place = await start(context, tenant, clock, price_micros_per_hour=3600)
    for _ in range(100):
        await place.read(1)
    await place.end()
    assert await told(tenant, job_id) == (33, 67)
    assert (await place.row()).meter_closed
    assert sum(map(sum, await place.paid())) == (await place.row()).metered_micros == 100


async def test_the_last_reading_heeds_a_pool_that_is_removed_and_a_new_one_of_its_name_begins_anew(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Meters are closed after their machines have ended; what was settled until then counts."""
    await settle(owner, spot_share=0.2)
    _, place = await start(context, tenant, clock)
    clock.advance(s=10)
    await owner.http.delete("/v1/pools/lab")
    await place.end()
    assert await place.paid() == [(2_000, 8_000)]
    await settle(owner)
    _, later = await start(context, tenant, clock)
    await later.read(10)
    assert await later.paid() == [(10_000, 0)]


async def test_a_machine_that_is_read_for_the_first_time_after_its_end_has_all_its_shares(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Nobody heard of it in between; the share of its beginning is as long ago as its beginning."""
    await settle(owner, spot_share=0.1)
    _, place = await start(context, tenant, clock)
    for share in (0.2, 0.3, 0.4):
        clock.advance(s=10)
        await settle(owner, spot_share=share)
    clock.advance(s=10)
    await place.end()
    assert await place.paid() == [(1_000, 9_000), (2_000, 8_000), (3_000, 7_000), (4_000, 6_000)]


async def test_two_changes_at_one_moment_or_by_clocks_that_are_apart_leave_the_last_one(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """A replica whose clock is behind does not write history: its change counts from where the newest one does."""
    await settle(owner, spot_share=0.3)
    await settle(owner, spot_share=0.4)
    async with context.database.transaction() as connection:
        ahead_ms = clock.now_ms() + 60_000
        await connection.execute(update(pool_spot_shares).values(from_ms=ahead_ms))
    await settle(owner, spot_share=0.5)
    async with context.database.transaction() as connection:
        rows = (await connection.execute(select(pool_spot_shares))).all()
    assert [(row.from_ms, row.parts) for row in rows] == [(ahead_ms, 500_000)]


async def test_gpu_hours_of_a_pair_do_not_depend_on_what_they_pay(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Two spot jobs in one process hold the same GPU, also where the pool gives it for nothing."""
    await settle(owner, spot_share=0)
    _, place = await start(context, tenant, clock)
    mate_id = await add_job(context, tenant, priority_class="spot")
    mate_run, mate_node = await add_run(context, tenant, mate_id, tier=Tier.OWN)
    async with context.database.transaction() as connection:
        now = {"node_id": place.node_id, "from_ms": clock.now_ms()}
        await connection.execute(update(allocations).where(allocations.c.run_id == mate_run).values(**now))
        await connection.execute(update(runs).where(runs.c.id == mate_run).values(companion_of=place.run_id))
        await connection.execute(update(run_jobs).where(run_jobs.c.run_id == mate_run).values(tokens=300))
        await connection.execute(update(run_jobs).where(run_jobs.c.run_id == place.run_id).values(tokens=100))
        await connection.execute(nodes.delete().where(nodes.c.id == mate_node))
    await place.read(10)
    assert await place.paid() == [(0, 2_500), (0, 7_500)] or await place.paid() == [(0, 7_500), (0, 2_500)]
    used = (await tenant.http.get("/v1/usage")).json()
    assert (used["cost"], used["gpu_ms"]) == (0, 10_000)
    assert {line["key"]: line["gpu_ms"] for line in used["lines"]}[mate_id] == 7_500


async def test_a_release_that_knows_no_share_bills_the_price_from_then_on_and_claims_nothing_back(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """What it reads of the machine's row is what the machine costs; and this release goes on from there again."""
    await settle(owner, spot_share=0.3)
    job_id, place = await start(context, tenant, clock)
    await place.read(10)
    clock.advance(s=10)
    row, now_ms = await place.row(), clock.now_ms()
    rule = BillingRule(row.billing_unit_ms, BillingStart(row.billing_starts))
    known = Meter(rule, Money(row.price_micros_per_hour), 1, row.billed_from_ms, row.ready_ms, job_id,
                  row.metered_until_ms, Money(row.metered_micros))  # fmt: skip
    older = split(known, [Occupancy(place.run_id, job_id, 1, row.billed_from_ms)], until_ms=now_ms)
    assert [line.amount.micros for line in older.lines] == [10_000]
    async with context.database.transaction() as connection:
        so_far = {"metered_until_ms": now_ms, "metered_micros": older.metered.micros}
        await connection.execute(update(nodes).where(nodes.c.id == place.node_id).values(**so_far))
        await connection.execute(update(pools).values(labels={"by": "an older release"}))
    await place.read(10)
    assert await told(tenant, job_id) == (6_000, 14_000)


async def test_what_an_evicted_job_has_lost_is_told_at_what_it_paid(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """A guaranteed job that was beyond its quota paid the price."""
    await settle(owner, spot_share=0.3)
    for kind, paid in (("spot", 1_080_000), ("guaranteed", 3_600_000)):
        job_id, place = await start(context, tenant, clock, kind)
        async with context.database.transaction() as connection:
            left = await left_run(connection, place.run_id, job_id)
        assert left is not None and left.price_micros == paid


async def test_a_share_is_told_beside_the_price(owner: Tenant, tenant: Tenant, context: ApiContext) -> None:
    """Of offers and plans: what a spot job pays there; elsewhere nothing is told, and no other price changes."""
    await settle(owner, spot_share=0.25)
    on_host = Offer(JOINED, "host_1-1xH100", Tier.OWN, "H100", 1, 80 * GIB, 8, 64 * GIB, Money(3_600_001), 1000, "lab")
    rented = Offer("local", "m-1", Tier.MARKETPLACE, "H100", 1, 80 * GIB, 8, 64 * GIB, Money(9_000_000), 1000, "lab")
    async with context.database.transaction() as connection:
        for offer in (on_host, rented):
            await replace_offers(connection, offer.provider, [offer], now_ms=context.clock.now_ms())
    listed = (await tenant.http.get("/v1/offers")).json()["data"]
    assert [(one["price_per_hour"], one["spot_price_per_hour"]) for one in listed] == [
        (3_600_001, 900_000),
        (9_000_000, None),
    ]
    asked = {"model": "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "batch": 8, "sequence": 512, "method": "lora"}
    plan = (await tenant.http.post("/v1/jobs/plan", json={**asked, "steps": 1000})).json()
    told_by = {offer["provider"]: offer for offer in plan["options"][0]["offers"]}
    assert told_by[JOINED]["spot_price_per_hour"] == 900_000
    assert told_by[JOINED]["spot_cost"] == (told_by[JOINED]["cost"] + 2) // 4 > 0
    assert (told_by["local"]["spot_price_per_hour"], told_by["local"]["spot_cost"]) == (None, None)
    await settle(owner, spot_share=1)
    assert [one["spot_price_per_hour"] for one in (await tenant.http.get("/v1/offers")).json()["data"]] == [None, None]


@pytest.mark.parametrize("share", [-0.1, 1.0001, "0.5", True, 1e-7, 0.1234567, 1e300, [0.5]], ids=repr)
async def test_what_is_no_share_is_refused(owner: Tenant, tenant: Tenant, share: object) -> None:
    """The field is named, and nothing changes; whoever does not own the installation changes nothing either."""
    await settle(owner, spot_share=0.5)
    answer = await owner.http.patch("/v1/pools/lab", json={"spot_share": share})
    assert "spot_share" in error_of(answer, 422, "invalid_input")["message"]
    assert error_of(answer, 422, "invalid_input")["param"] == "spot_share"
    error_of(await tenant.http.patch("/v1/pools/lab", json={"spot_share": 0}), 403, "forbidden")
    assert (await owner.http.get("/v1/pools/lab")).json()["spot_share"] == 0.5
    assert (await settle(owner, spot_share=None))["spot_share"] == 0.5, "null names nothing"


async def test_a_pool_says_how_long_jobs_have_that_leave_it(owner: Tenant, context: ApiContext) -> None:
    """From ten seconds to ten minutes; nothing named changes nothing, and null is the usual time again."""
    assert (await settle(owner))["grace_s"] is None
    assert (await settle(owner, grace_s=300))["grace_s"] == 300
    assert (await settle(owner, preference=2))["grace_s"] == 300
    for wrong in (9, 601, 10.5, "60", True, -1, 10**30):
        answer = await owner.http.patch("/v1/pools/lab", json={"grace_s": wrong})
        assert error_of(answer, 422, "invalid_input")["param"] == "grace_s"
    assert (await settle(owner, grace_s=None))["grace_s"] is None
    asked = PoolRequest(name="gpu", launcher="slurm", grace_s=60)
    async with context.database.transaction() as connection:
        with pytest.raises(InvalidInput, match=r"grace_s: only a pool of hosts that have joined .* are of slurm"):
            await define_pool(connection, context.ids, asked, ["slurm"], now_ms=context.clock.now_ms())


async def test_what_somebody_wrote_by_hand_is_a_share_all_the_same(
    owner: Tenant, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Nobody is paid for running a job, and the meter goes on."""
    await settle(owner, spot_share=0.5)
    job_id, place = await start(context, tenant, clock)
    async with context.database.transaction() as connection:
        await connection.execute(update(pools).values(spot_share_parts=-5))
        await connection.execute(update(pool_spot_shares).values(parts=2 * FULL))
    await place.read(10)
    assert await told(tenant, job_id) == (10_000, None)
    assert (await owner.http.get("/v1/pools/lab")).json()["spot_share"] == 0
