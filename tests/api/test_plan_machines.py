"""What a job would need over several machines, asked over HTTP: where they reach each other, how fast, and why not."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, text

from allpass.wire.plan import Plan
from app.api.context import ApiContext
from app.core import codec
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.pool import JOINED, Pool
from app.core.pools import shared_host
from app.db.offers.listed import replace_offers
from app.db.pools.pools import PoolRow, add_pool
from app.db.tables import hosts, offers
from tests.api.conftest import Tenant, error_of
from tests.conftest import ManualClock
from tests.core.samples import GIB, offer
from tests.seeds import T0_MS, new_id, seed_job, seed_node, seed_run

LORA = {"model": "llama-3.1-8b", "method": "lora", "batch": 16, "sequence": 1024, "layout": {"gpus": 2}}
WHOLE = {"model": "llama-3.1-8b", "method": "full", "batch": 16, "sequence": 1024}
ADAPTERS = 41_943_040 * 4  # bytes


def of_host(host: str, gpus: int = 2, pool: str = "lab", **changes: Any) -> Offer:
    kind = {"gpu_type": "A100", "gpu_count": gpus, "gpu_memory_bytes": 80 * GIB, "memory_bytes": 256 * GIB}
    made = offer(f"{pool}-{host}-{gpus}", Tier.OWN, "1.50", region=pool, host=shared_host(host, "A100"), **kind)
    return replace(made, provider=JOINED, shared_gpus=gpus, **changes)


def in_market(gpus: int = 2, **changes: Any) -> Offer:
    kind = {"gpu_type": "A100", "gpu_count": gpus, "gpu_memory_bytes": 80 * GIB, "memory_bytes": 256 * GIB}
    return replace(offer(f"ask-{gpus}", Tier.MARKETPLACE, "1", **kind), provider="vast", **changes)


async def listed(context: ApiContext, *seen: Offer) -> None:
    async with context.database.transaction() as connection:
        for provider in {one.provider for one in seen}:
            mine = [one for one in seen if one.provider == provider]
            networked = () if provider == "vast" else (Tier.OWN, Tier.CONVENTIONAL)
            await replace_offers(connection, provider, mine, now_ms=context.clock.now_ms(), networked=networked)


async def planned(tenant: Tenant, asked: dict[str, Any] = LORA, **changes: Any) -> Plan:
    response = await tenant.http.post("/v1/jobs/plan", json=asked | changes)
    assert response.status_code == 200, response.text
    return Plan.model_validate(response.json())


async def met(context: ApiContext, tenant: Tenant, pool: str, *speeds: int) -> None:
    """A training over machines of the pool, whose further ones reached the first one so fast."""
    async with context.database.transaction() as connection:
        job_id = await seed_job(connection, tenant.project_id)
        lead_id = new_id("run")
        for epoch, speed in enumerate(speeds, 1):
            place = {"provider": JOINED, "tier": Tier.OWN, "region": pool}
            node_id = await seed_node(connection, tenant.project_id, **place)
            member = {"member_of": lead_id, "node_rank": epoch, "network_bits_per_s": speed}
            await seed_run(connection, tenant.project_id, job_id, node_id, epoch=epoch, **member)


async def test_all_machines_are_priced_together_with_what_they_tell_each_other(
    tenant: Tenant, context: ApiContext
) -> None:
    """Two hosts of a pool for the recipe; its steps wait for a network that nobody has measured, and that is said."""
    await listed(context, of_host("a"), of_host("b"), in_market())
    told = await planned(tenant, nodes=2, steps=100)
    assert (told.nodes, told.options, told.chosen, told.chosen_machines) == (2, [], None, 0)
    (found,) = told.machines
    assert (found.provider, found.site, found.machines, found.why_not) == (JOINED, "lab", 2, None)
    assert (found.runs_as, found.layout.gpus, found.layout.sharding) == ("recipe", 4, "ddp")
    assert found.price_per_hour == Money.usd("3").micros
    network = found.network
    assert (network.source, network.bits_per_s, network.meetings) == ("assumed", 10_000_000_000, 0)
    assert network.bytes_per_step == (found.layout.accumulation + 1) * 2 * ADAPTERS * 2 // 4
    assert found.computing_ms is not None and found.step_ms is not None and found.startup_ms is not None
    assert found.step_ms == pytest.approx(found.computing_ms + network.bytes_per_step * 8 / 10_000_000)
    assert found.duration_ms == found.startup_ms + round(100 * found.step_ms)
    assert found.cost == 3_000_000 * found.duration_ms // 3_600_000
    assert told.reason == told.machines_reason == "it fits there, and all 2 machines are to be had"


async def test_what_was_measured_in_a_pool_counts_for_it_alone(tenant: Tenant, context: ApiContext) -> None:
    """The slowest way of a training; and what is said in the question counts before it."""
    await listed(context, *(of_host(name, pool=pool) for name in "ab" for pool in ("lab", "annex")))
    await met(context, tenant, "lab", 9_000_000_000, 200_000_000)
    told = {one.site: one.network for one in (await planned(tenant, nodes=2)).machines}
    assert (told["lab"].source, told["lab"].bits_per_s, told["lab"].meetings) == ("measured", 200_000_000, 1)
    assert told["lab"].is_slow and not told["annex"].is_slow
    assert told["annex"].source == "assumed"
    stated = (await planned(tenant, nodes=2, network_gbits=0.5)).machines
    assert [(one.network.source, one.network.bits_per_s) for one in stated] == [("stated", 500_000_000)] * 2


async def test_where_nothing_fits_on_one_machine_those_are_told_on_which_it_does(
    tenant: Tenant, context: ApiContext
) -> None:
    """A whole fine-tuning that a script may spread; the recipe is told that more machines do not help."""
    small = [of_host(name, gpu_memory_bytes=24 * GIB) for name in "abcd"]
    await listed(context, *small)
    told = await planned(tenant, WHOLE)
    assert told.chosen is None and {one.verdict for one in told.options} == {"no"}
    (found,) = told.machines
    assert told.chosen_machines == 0
    assert (found.nodes, found.gpu_count, found.verdict, found.runs_as) == (4, 2, "fits", "script")
    assert found.layout.gpus == 8 and found.layout.sharding in {"zero2", "fsdp"}
    recipe = await planned(tenant, WHOLE, layout={"gpus": 2})
    assert (recipe.machines, recipe.machines_reason) == (
        [],
        "more machines do not help: each GPU holds all of the training",
    )
    await listed(context, *small, in_market(1, gpu_memory_bytes=200 * GIB))
    enough = await planned(tenant, WHOLE)
    assert (enough.chosen, enough.machines, enough.machines_reason) == (0, [], None)


async def test_gpus_that_no_machine_has_so_many_of_are_looked_for_on_several(
    tenant: Tenant, context: ApiContext
) -> None:
    """Four for the recipe, of which every host has two: as many, on two hosts."""
    await listed(context, of_host("a"), of_host("b"))
    told = await planned(tenant, layout={"gpus": 4})
    assert told.reason.startswith("no provider offers a machine with 4 GPUs now")
    (found,) = told.machines
    assert (found.nodes, found.gpu_count, told.chosen_machines) == (2, 2, 0)


async def test_machines_that_are_not_to_be_had_are_told_without_a_price(tenant: Tenant, context: ApiContext) -> None:
    """Too few, a pool's limit, machines that do not reach each other, and a GPU that no site has."""
    await listed(context, of_host("a"), in_market())
    told = await planned(tenant, nodes=2)
    (found,) = told.machines
    assert (found.price_per_hour, found.cost, told.chosen_machines) == (None, None, None)
    assert told.machines_reason == (
        "it fits on 2 machines with 2 x A100 each, on one private network, which are not to be had now: "
        "pool lab: 1 such machine is free now, of 2"
    )
    await listed(context, replace(of_host("z"), gpu_type="T4"), in_market())
    assert (await planned(tenant, nodes=2, gpu_type="a100")).machines_reason == (
        "no site has 2 machines with 2 x a100 each, on one private network: "
        "those of vast marketplace do not reach each other"
    )
    none = await planned(tenant, nodes=2, gpu_type="H100")
    assert none.machines == []
    assert none.machines_reason == (
        "no site has 2 machines with 2 x H100 each, on one private network: none is to be had now"
    )


async def test_switches_are_told_and_a_bound_on_them_is_heeded(tenant: Tenant, context: ApiContext) -> None:
    names = ("host_a", "host_b", "host_c")
    await listed(context, *(of_host(name) for name in names))
    async with context.database.transaction() as connection:
        await add_pool(connection, PoolRow(Pool("lab"), "", {}, T0_MS))
        for name, switch in zip(names, ("leaf-1", "leaf-2", "leaf-2"), strict=True):
            row = {"id": name, "pool": "lab", "name": name, "nonce_sha256": name.encode(), "boot_id": ""}
            row |= {"facts": {}, "joined_ms": 0, "heard_ms": 2**50, "labels": {"switch": switch, "rack": "r1"}}
            await connection.execute(insert(hosts).values(**row))
    (found,) = (await planned(tenant, nodes=2)).machines
    assert [(one.rack, one.switch, one.machines) for one in found.switches] == [("r1", "leaf-2", 2)]
    (found,) = (await planned(tenant, nodes=2, most_per_switch=1)).machines
    assert sorted(one.switch for one in found.switches) == ["leaf-1", "leaf-2"]
    assert found.entropy == pytest.approx(0.693, abs=1e-3)
    told = await planned(tenant, nodes=2, most_per_rack=1)
    assert told.chosen_machines is None
    assert told.machines_reason == (
        "it fits on 2 machines with 2 x A100 each, on one private network, at most 1 in one rack, which are not to be "
        "had now: pool lab: 3 such machines are free now, and a job may have 1 of them together, of 2"
    )


async def test_the_limit_of_a_pool_counts_what_is_in_use(tenant: Tenant, context: ApiContext) -> None:
    await listed(context, of_host("a"), of_host("b"))
    async with context.database.transaction() as connection:
        await add_pool(connection, PoolRow(Pool("lab", most_gpus=6), "", {}, T0_MS))
    assert (await planned(tenant, nodes=2)).chosen_machines == 0
    async with context.database.transaction() as connection:
        place = {"provider": JOINED, "tier": Tier.OWN, "region": "lab", "gpu_count": 3}
        await seed_node(connection, tenant.project_id, **place)
    (found,) = (await planned(tenant, nodes=2)).machines
    assert found.why_not == "the limit of the pool lets 3 more GPUs be used, of 4"


async def test_machines_of_other_projects_are_neither_offered_nor_named(
    tenant: Tenant, stranger: Tenant, context: ApiContext
) -> None:
    """Not over several machines, and not on one: whoever may use them sees them."""
    theirs = [of_host(name, pool="secretive", projects=(stranger.project_id,)) for name in "ab"]
    await listed(context, *theirs)
    await met(context, stranger, "secretive", 9_000_000_000)
    for nodes in (1, 2):
        answer = await tenant.http.post("/v1/jobs/plan", json=LORA | {"nodes": nodes})
        assert answer.status_code == 200 and "secretive" not in answer.text
        assert answer.json()["options"] == answer.json()["machines"] == []
    assert (await planned(stranger)).chosen == 0
    (found,) = (await planned(stranger, nodes=2)).machines
    assert (found.site, found.network.source) == ("secretive", "measured")


async def test_what_a_pool_of_a_cluster_says_counts_though_its_launcher_lists_it_otherwise(
    tenant: Tenant, stranger: Tenant, context: ApiContext
) -> None:
    """Who may use it, and its price: a launcher knows neither."""
    node = replace(of_host("", pool="gpu"), provider="slurm", host="", shared_gpus=0)
    await listed(context, node)
    (found,) = (await planned(tenant, nodes=3)).machines
    assert (found.price_per_hour, found.machines) == (Money.usd("4.50").micros, None)
    async with context.database.transaction() as connection:
        pool = Pool("gpu", launcher="slurm", price=Money.usd("0.25"), projects=(stranger.project_id,))
        await add_pool(connection, PoolRow(pool, "", {}, T0_MS))
    assert (await planned(tenant, nodes=3)).machines == []
    assert (await planned(tenant)).options == []
    (found,) = (await planned(stranger, nodes=3)).machines
    assert found.price_per_hour == Money.usd("1.50").micros


@pytest.mark.parametrize(
    "gone", [{"left_ms": T0_MS}, {"leaves_ms": T0_MS}, {"heard_ms": T0_MS - 60_000}], ids=["left", "leaves", "silent"]
)
async def test_hosts_that_are_gone_are_none(tenant: Tenant, context: ApiContext, gone: dict[str, int]) -> None:
    """Though the last listing, a minute ago, still had them."""
    names = [new_id("host"), new_id("host")]
    async with context.database.transaction() as connection:
        await add_pool(connection, PoolRow(Pool("lab"), "", {}, T0_MS))
        for name in names:
            row = {"id": name, "pool": "lab", "name": name, "nonce_sha256": name.encode(), "boot_id": "b", "facts": {}}
            await connection.execute(insert(hosts).values(**row, joined_ms=T0_MS, heard_ms=T0_MS))
    await listed(context, *(of_host(name) for name in names))
    assert (await planned(tenant, nodes=2)).chosen_machines == 0
    async with context.database.transaction() as connection:
        await connection.execute(hosts.update().where(hosts.c.id == names[0]).values(**gone))
    (found,) = (await planned(tenant, nodes=2)).machines
    assert (found.machines, found.price_per_hour) == (1, None)


async def test_offers_that_an_older_release_has_listed_do_not_say_whether_they_reach_each_other(
    tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """That is said; one machine is planned as ever."""
    async with context.database.transaction() as connection:
        for one in (of_host("a"), of_host("b")):
            row = {"provider": JOINED, "offer_id": one.offer_id, "tier": Tier.OWN, "offer": codec.encode(one)}
            price = one.price_per_hour.micros
            await connection.execute(insert(offers).values(**row, price_micros_per_hour=price, seen_ms=clock.now_ms()))
    told = await planned(tenant, nodes=2)
    assert (told.machines, told.chosen_machines) == ([], None)
    assert told.machines_reason is not None and told.machines_reason.startswith(
        "which machines reach each other is not"
    )
    assert (await planned(tenant)).chosen == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodes": 65}, "nodes"),
        ({"nodes": 1_000_000}, "nodes"),
        ({"nodes": -1}, "nodes"),
        ({"nodes": 2, "spot": True}, "spot"),
        ({"nodes": "2"}, "nodes"),
        ({"nodes": 2.5}, "nodes"),
        ({"gpu_type": ""}, "gpu_type"),
        ({"gpu_type": "x" * 41}, "gpu_type"),
        ({"gpu_count": 2}, "gpu_count"),
        ({"most_per_rack": 2}, "most_per_rack"),
        ({"nodes": 2, "most_per_switch": 0}, "most_per_switch"),
        ({"nodes": 4, "most_per_switch": 3, "most_per_rack": 2}, "most_per_switch"),
        ({"network_gbits": 0}, "network_gbits"),
        ({"network_gbits": 1e300}, "network_gbits"),
    ],
)
async def test_what_cannot_be_asked_is_refused_by_its_field(tenant: Tenant, change: dict[str, Any], field: str) -> None:
    refused = await tenant.http.post("/v1/jobs/plan", json=LORA | change)
    assert error_of(refused, 422, "invalid_input")["param"] == field


async def test_a_step_that_the_machines_cannot_share_says_what_they_could(tenant: Tenant, context: ApiContext) -> None:
    await listed(context, *(of_host(name) for name in "abc"))
    told = await planned(tenant, WHOLE, nodes=3)
    assert told.machines_reason == (
        "a step of 16 sequences cannot be shared evenly by 3 machines: take a multiple as batch"
    )


async def test_no_gpu_is_large_enough_for_the_recipe(tenant: Tenant, context: ApiContext) -> None:
    """What each would have to have, and that more machines do not help."""
    await listed(context, *(of_host(name, gpu_memory_bytes=16 * GIB) for name in "ab"))
    told = await planned(tenant, WHOLE, nodes=2, layout={"gpus": 2})
    assert [one.verdict for one in told.machines] == ["no"] and told.chosen_machines is None
    assert told.machines_reason is not None
    assert told.machines_reason.startswith(
        "nothing that is offered now is sure to fit over 2 machines; 2 x 2 GPUs are "
    )
    assert told.machines_reason.endswith("more machines do not help: each GPU holds all of the training")


async def test_of_a_pool_with_twenty_thousand_hosts_few_are_read(tenant: Tenant, context: ApiContext) -> None:
    """As many as a job can have machines, of each number of GPUs; in about a second on a busy machine."""
    await listed(context, of_host("h0", 8), of_host("h0", 4), of_host("h0", 2), of_host("h0", 1))
    many = text(
        "INSERT INTO offers (provider, offer_id, tier, offer, price_micros_per_hour, seen_ms) "
        "SELECT provider, offer_id || '-' || n, tier, offer || jsonb_build_object('host', 'h' || n || '/A100', "
        "'offer_id', offer_id || '-' || n), price_micros_per_hour, seen_ms "
        "FROM offers, generate_series(1, 20000) AS n"
    )
    async with context.database.transaction() as connection:
        await connection.execute(many)
    began = time.perf_counter()
    told = await planned(tenant, nodes=64)
    took_s = time.perf_counter() - began
    (found,) = told.machines
    assert (found.nodes, found.machines, told.chosen_machines) == (64, 64, None if found.verdict != "fits" else 0)
    assert took_s < 20, f"{took_s:.1f} s"
