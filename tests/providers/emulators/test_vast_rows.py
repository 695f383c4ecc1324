"""What Vast.ai is known to do, row by row: the emulator does it too, and the real adapter copes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from app.core.images.logins import read_logins
from app.core.model.ids import is_id
from app.core.model.money import Money
from app.core.model.offer import Offer
from app.errors import OfferGone, OutcomeUnknown, PriceMoved, ProviderError, QuotaExceeded, RateLimited
from app.ports.provider import Machine, MachineRequest, MachineStatus
from providers.conformance.suite import new_label, request_for
from providers.emulators.market import EmulatedMarket
from providers.emulators.vast.company import GOODS
from providers.vast.adapter import VastProvider
from providers.vast.bids import ask_of
from tests.providers.cloud_process import PATIENCE_S, eventually, ok
from tests.providers.vast_emulator import EmulatedVast

DAY_MS = 86_400_000


@pytest.fixture
async def provider(vast: EmulatedVast) -> AsyncIterator[VastProvider]:
    adapter = vast.provider()
    yield adapter
    await adapter.close()


@pytest.fixture
async def bidder(vast: EmulatedVast) -> AsyncIterator[VastProvider]:
    adapter = vast.provider(bids=True)
    yield adapter
    await adapter.close()


async def cheapest(provider: VastProvider, gpu_type: str = "T4") -> Offer:
    return min((each for each in await provider.offers() if each.gpu_type == gpu_type), key=lambda o: o.price_per_hour)


async def rent(provider: VastProvider, **env: str) -> Machine:
    request = request_for(await cheapest(provider))
    return await provider.create(with_env(request, **env))


def with_env(request: MachineRequest, **env: str) -> MachineRequest:
    return MachineRequest(
        label=request.label,
        offer=request.offer,
        max_price_per_hour=request.max_price_per_hour,
        image=request.image,
        bootstrap=tuple(env.items()),
    )


async def until(provider: VastProvider, ref: str, passes: Callable[[Machine], bool]) -> Machine:
    """The contract, once it is as wanted."""

    async def probe() -> Machine | None:
        machine = await provider.get(ref)
        return machine if machine is not None and passes(machine) else None

    async with asyncio.timeout(PATIENCE_S):
        while (machine := await probe()) is None:
            await asyncio.sleep(0.02)
    return machine


async def runs(provider: VastProvider, ref: str) -> Machine:
    return await until(provider, ref, lambda machine: machine.status is MachineStatus.RUNNING)


# 1


async def test_a_stale_search_shows_what_is_gone(vast: EmulatedVast, provider: VastProvider) -> None:
    """For a moment a search shows hosts that are taken; renting one of them is refused, and leaves nothing."""
    vast.switch(stale_search_ms=60_000)
    offer = await cheapest(provider)
    assert vast.rent(offer.offer_id).is_success
    assert offer.key in {each.key for each in await provider.offers()}
    request = request_for(offer)
    with pytest.raises(OfferGone):
        await provider.create(request)
    assert vast.rent(offer.offer_id, cancel_unavail=True).status_code == 410
    assert vast.rent(offer.offer_id, cancel_unavail=False).status_code == 404
    assert await provider.find(request.label) == []


async def test_an_offer_vanishes_between_search_and_rent(vast: EmulatedVast, provider: VastProvider) -> None:
    """A host that its owner has withdrawn since the search is refused as an offer that is gone."""
    request = request_for(await cheapest(provider))
    ok(vast.admin.post("/admin/market", json={"empty": True}))
    with pytest.raises(OfferGone):
        await provider.create(request)
    assert await provider.offers() == []


# 2


async def test_an_offer_rented_twice_starts_once(vast: EmulatedVast, provider: VastProvider) -> None:
    """Where two rents of one offer succeed, only the first starts: one adapter never tries, two may collide."""
    vast.switch(double_rent=True)
    offer = await cheapest(provider)
    elsewhere = vast.provider()
    vast.fault("create", "stuck")
    tried = await provider.create(request_for(offer))
    with pytest.raises(OfferGone):  # while the first has not come up
        await provider.create(request_for(offer))
    await provider.terminate(tried.ref)
    first = await provider.create(request_for(offer))
    second = await elsewhere.create(request_for(offer))
    await runs(provider, first.ref)
    stuck = await elsewhere.get(second.ref)
    assert stuck is not None
    assert (stuck.status, vast.machine(second.ref)["boot_at_ms"]) == (MachineStatus.BOOTING, None)
    await elsewhere.terminate(second.ref)
    assert [machine["ref"] for machine in vast.live()] == [first.ref]
    await elsewhere.close()


# 3


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "drop"},
        {"kind": "hang"},
        {"kind": "slow", "ms": 6_000},
        {"kind": "error", "args": {"status": 502}},
        {"kind": "error", "args": {"status": 504}},
    ],
    ids=["dropped", "hangs", "slow", "502", "504"],
)
async def test_a_create_whose_answer_is_lost_is_looked_up(
    vast: EmulatedVast, provider: VastProvider, fault: dict[str, Any]
) -> None:
    """The contract is there although the answer is not: its label finds it, and nothing was sent twice."""
    impatient = vast.provider(timeout_s=4.0)
    request = request_for(await cheapest(provider))
    vast.fault("create", when="after", **fault)
    with pytest.raises(OutcomeUnknown):
        await impatient.create(request)
    (found,) = await provider.find(request.label)
    assert [machine["ref"] for machine in vast.live()] == [found.ref]
    with pytest.raises(OfferGone):  # the attempt is open: whatever it left may still be on this host
        await impatient.create(request)
    await impatient.close()


async def test_a_repeated_create_pays_twice(vast: EmulatedVast, provider: VastProvider) -> None:
    """There is no key that makes a create safe to repeat: two under one label are two contracts, and both are found."""
    label = new_label()
    offers = vast.search(limit=2)
    refs = {str(vast.rent(offer["id"], label=label).json()["new_contract"]) for offer in offers}
    assert {machine.ref for machine in await provider.find(label)} == refs
    assert len(refs) == 2


# 4


async def test_a_refusal_that_names_a_contract_leaves_nothing(vast: EmulatedVast, provider: VastProvider) -> None:
    """A create that is refused and has made a contract all the same: the adapter destroys it."""
    vast.fault("create", "error_with_contract")
    with pytest.raises(PriceMoved):
        await rent(provider)
    assert vast.live() == []


async def test_a_refused_contract_that_stays_is_told(vast: EmulatedVast, provider: VastProvider) -> None:
    """If what a refusal left cannot be destroyed the outcome is unknown: anybody finds it, stopped, and billed."""
    request = request_for(await cheapest(provider))
    vast.fault("create", "error_with_contract")
    vast.fault("destroy", "error", args={"status": 503})
    with pytest.raises(OutcomeUnknown) as raised:
        await provider.create(request)
    elsewhere = vast.provider()
    (left,) = await elsewhere.find(request.label)
    assert left.status is MachineStatus.STOPPED
    assert left.ref in raised.value.message
    await elsewhere.close()
    assert await provider.find(request.label) == []  # who made it knows better, and destroys it first
    assert vast.live() == []


async def test_a_bid_that_is_too_low_stops_at_once(vast: EmulatedVast, bidder: VastProvider) -> None:
    """A bid below the minimum of this moment is refused; without `cancel_unavail` a stopped contract stays."""
    offer = await cheapest(bidder)
    ok(vast.admin.post("/admin/market", json={"price_micros": {"Tesla T4": 2_000_000}}))
    request = request_for(offer)
    with pytest.raises(PriceMoved):
        await bidder.create(request)
    assert vast.live() == []
    refused = vast.rent(ask_of(offer.offer_id), price=0.01)
    assert refused.status_code == 400
    (left,) = vast.live()
    assert (left["ref"], left["state"]) == (str(refused.json()["new_contract"]), "stopped")


# 5 is in test_vast_times.py


async def test_a_start_that_takes_for_ever_is_ended_and_held_against_the_host(vast: EmulatedVast) -> None:
    """A contract that loads past every deadline can be destroyed; its host is not offered again for a while."""
    provider = vast.provider(startup_deadline_ms=1)
    request = request_for(await cheapest(provider))
    vast.fault("create", "stuck")
    machine = await provider.create(request)
    assert (machine.status, machine.billed_from_ms) == (MachineStatus.BOOTING, None)
    await provider.terminate(machine.ref)
    assert request.offer.host not in {offer.host for offer in await provider.offers()}
    await provider.close()


# 6


@pytest.mark.parametrize("message", ["", "Error response from daemon: pull access denied for allpass/node"])
async def test_a_container_that_cannot_start_says_so_in_passing(
    vast: EmulatedVast, provider: VastProvider, message: str
) -> None:
    """The status stays at created for ever; only the message says why. The adapter reads it, and blames the host."""
    request = request_for(await cheapest(provider))
    vast.fault("create", "boot_fails", args={"message": message} if message else {})
    machine = await provider.create(request)
    assert machine.status is MachineStatus.STOPPED
    assert (message or "OCI runtime create failed") in machine.detail
    await provider.terminate(machine.ref)
    assert request.offer.host not in {offer.host for offer in await provider.offers()}


PRIVATE = "registry.example.com robot hush"


@pytest.mark.parametrize(
    ("password", "why"),
    [(None, "pull access denied"), ("wrong", "authentication required"), ("hush", None)],
    ids=["no login", "a wrong one", "the right one"],
)
async def test_a_private_image_needs_its_login(vast: EmulatedVast, password: str | None, why: str | None) -> None:
    """It is loaded with that of its registry alone, and nothing in the container tells it."""
    given = json.dumps({"registry.example.com": {"user": "robot", "password": password}}) if password else ""
    vast.switch(private_registry=PRIVATE)
    provider = vast.provider(logins=read_logins(given))
    request = replace(request_for(await cheapest(provider)), image="registry.example.com/team/node:1")
    machine = await provider.create(replace(request, bootstrap=(("AGENT", "env; exec sleep 600"),)))
    if why is None:
        await runs(provider, machine.ref)
        assert "hush" not in vast.log_of(machine.ref)
    else:
        assert machine.status is MachineStatus.STOPPED
        assert why in machine.detail
    await provider.close()


async def test_a_password_is_not_repeated_in_errors(vast: EmulatedVast) -> None:
    """An answer that quotes what was sent is told without it."""
    given = json.dumps({"registry.example.com": {"user": "robot", "password": "hush"}})
    provider = vast.provider(logins=read_logins(given))
    request = replace(request_for(await cheapest(provider)), image="registry.example.com/team/node:1")
    vast.fault("create", "error", args={"status": 400, "message": "cannot read -u robot -p hush registry.example.com"})
    with pytest.raises(ProviderError) as raised:
        await provider.create(request)
    assert "-u robot -p *** registry.example.com" in str(raised.value)
    await provider.close()


async def test_an_entry_point_of_the_image_does_not_swallow_the_agent(
    vast: EmulatedVast, provider: VastProvider
) -> None:
    """It would run our command's words as its own: another entry point takes its place."""
    vast.switch(image_entrypoint="echo swallowed:")
    swallowed = str(vast.rent(args=["sh", "-c", "echo up"]).json()["new_contract"])
    eventually(lambda: "swallowed: sh -c echo up" in vast.log_of(swallowed))
    machine = await rent(provider)
    await runs(provider, machine.ref)
    assert "swallowed" not in vast.log_of(machine.ref)


# 7


async def test_a_container_that_ends_leaves_a_contract(vast: EmulatedVast, provider: VastProvider) -> None:
    """When the container ends by itself its GPU is free and its disk still costs: stopped, not ended."""
    machine = await rent(provider)
    await runs(provider, machine.ref)
    vast.act(machine.ref, "kill")
    dead = await until(provider, machine.ref, lambda each: each.status is MachineStatus.STOPPED)
    assert dead.detail.startswith("exited")
    assert vast.api.get(f"/api/v0/instances/{machine.ref}/").json()["instances"]["actual_status"] == "exited"


@pytest.mark.parametrize("away", ["offline", "unknown"])
async def test_a_host_that_is_away_may_come_back(vast: EmulatedVast, provider: VastProvider, away: str) -> None:
    """A host that is not heard of has not ended: the adapter waits for it, and it can come back."""
    machine = await rent(provider)
    await runs(provider, machine.ref)
    vast.act(machine.ref, away)
    gone = await provider.get(machine.ref)
    assert gone is not None
    assert gone.status is MachineStatus.RUNNING
    assert gone.detail.startswith(away)
    assert machine.ref in {each.ref for each in await provider.list_owned()}
    vast.act(machine.ref, "online")
    back = await until(provider, machine.ref, lambda each: each.detail.startswith("running"))
    assert back.status is MachineStatus.RUNNING


# 8


async def test_an_outbid_container_comes_back_as_a_zombie(vast: EmulatedVast, bidder: VastProvider) -> None:
    """Outbid is a stop without a word; when the bid wins again, the same script runs again on the same disk."""
    assert bidder.traits()[0].preemptible
    machine = await rent(bidder, AGENT="echo $$ >> disk; cat disk | wc -l; exec sleep 600")
    await runs(bidder, machine.ref)
    eventually(lambda: "1" in vast.log_of(machine.ref).split())
    vast.act(machine.ref, "outbid")
    lost = await bidder.get(machine.ref)
    assert lost is not None
    assert lost.status is MachineStatus.STOPPED
    assert "outbid" in lost.detail
    vast.act(machine.ref, "win")
    await runs(bidder, machine.ref)
    eventually(lambda: "2" in vast.log_of(machine.ref).split())


async def test_the_market_outbids_and_gives_way(vast: EmulatedVast, bidder: VastProvider) -> None:
    """A container runs while its bid is above what the host asks: it stops when the market rises, and resumes."""
    machine = await rent(bidder)
    await runs(bidder, machine.ref)
    ok(vast.admin.post("/admin/market", json={"price_micros": {"Tesla T4": 9_000_000}}))
    await until(bidder, machine.ref, lambda each: each.status is MachineStatus.STOPPED)
    ok(vast.admin.delete("/admin/market"))
    await runs(bidder, machine.ref)


# 9


async def test_a_contract_that_is_over_stops_and_costs_its_disk(vast: EmulatedVast, provider: VastProvider) -> None:
    """At its end date a contract is stopped, not ended: the disk goes on costing until somebody destroys it."""
    machine = await rent(provider)
    await runs(provider, machine.ref)
    vast.act(machine.ref, "expire")
    over = await until(provider, machine.ref, lambda each: each.status is MachineStatus.STOPPED)
    assert over.price_per_hour == machine.price_per_hour
    before = vast.machine(machine.ref)["bill"]
    after = eventually(
        lambda: (now := vast.machine(machine.ref)["bill"])["amount_micros"] > before["amount_micros"] and now
    )
    assert after["billed_ms"] == before["billed_ms"]


async def test_without_credit_everything_stops(vast: EmulatedVast, provider: VastProvider) -> None:
    """When the account is empty all containers stop, and a create is a matter of the account, not of the offer."""
    machine = await rent(provider)
    await runs(provider, machine.ref)
    vast.switch(credit_micros=1)
    await until(provider, machine.ref, lambda each: each.status is MachineStatus.STOPPED)
    with pytest.raises(QuotaExceeded):
        await rent(provider)


# 10


@pytest.mark.parametrize("shape", ["text", "detail", "json"])
async def test_calls_that_come_too_fast_are_refused(vast: EmulatedVast, provider: VastProvider, shape: str) -> None:
    """Each endpoint has its interval; the refusal says neither how long to wait, nor always in JSON."""
    vast.switch(rate_limits="on", limit_shape=shape)
    assert vast.rent(1).status_code == 404
    refused = eventually(lambda: (answer := vast.rent(1)).status_code == 429 and answer)  # two come close in the end
    assert refused.headers.get("Retry-After") is None
    assert refused.text.startswith("{") is (shape != "text")
    vast.switch(rate_limits="off")
    for op, call, pause_ms in (
        ("create", lambda: rent(provider), 12_000),
        ("list", provider.list_owned, 2_000),
        ("destroy", lambda: provider.terminate("1"), 3_000),
    ):
        vast.fault(op, "rate_limited", args={"shape": shape})
        with pytest.raises(RateLimited) as raised:
            await call()
        assert raised.value.retry_after_ms == pause_ms


async def test_searches_are_counted_by_the_minute_and_by_the_day(vast: EmulatedVast, provider: VastProvider) -> None:
    """More than ten searches in a minute are refused; the day's quota comes back at midnight, and not before."""
    vast.switch(rate_limits="on")
    answers = [vast.api.post("/api/v0/bundles/", json={"limit": 1}).status_code for _ in range(11)]
    assert 429 in answers
    vast.switch(rate_limits="off")
    vast.fault("search", "search_quota")
    with pytest.raises(RateLimited) as raised:
        await provider.offers()
    assert 0 < raised.value.retry_after_ms <= DAY_MS
    vast.fault("search", "drop")
    with pytest.raises(RateLimited):
        await provider.offers()
    assert len(ok(vast.admin.get("/admin/faults"))["faults"]) == 1  # nothing was asked


# 11


async def test_a_second_destroy_finds_nothing(vast: EmulatedVast, provider: VastProvider) -> None:
    """Destroying twice is 404 for the API, and done for the adapter."""
    machine = await rent(provider)
    await provider.terminate(machine.ref)
    again = vast.api.request("DELETE", f"/api/v0/instances/{machine.ref}/", json={})
    assert (again.status_code, again.json()["error"]) == (404, "no_such_instance")
    await provider.terminate(machine.ref)


# 12


async def test_a_long_listing_comes_in_pages(vast: EmulatedVast, provider: VastProvider) -> None:
    """The API gives 25 contracts at once; the adapter lists them all, without those that carry no label of ours."""
    vast.fault("create", "stuck", count=27)
    offers = vast.search(limit=27)
    labels = {new_label() for _ in range(26)}
    for offer, label in zip(offers, labels, strict=False):
        assert vast.rent(offer["id"], label=label).is_success
    assert vast.rent(offers[26]["id"], label=None).is_success
    page = vast.api.get("/api/v1/instances/", params={"limit": 100}).json()
    assert (len(page["instances"]), page["total_instances"]) == (25, 27)
    assert None in {row["label"] for row in rest_of(vast, page)}
    assert {machine.label for machine in await provider.list_owned()} == labels


def rest_of(vast: EmulatedVast, page: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = vast.api.get("/api/v1/instances/", params={"after_token": page["next_token"]}).json()[
        "instances"
    ]
    return rows


async def test_a_fresh_contract_is_listed_late(vast: EmulatedVast, provider: VastProvider) -> None:
    """For some seconds a contract is known by its number only: within that grace nothing may be concluded."""
    vast.switch(list_lag_ms=60_000)
    request = request_for(await cheapest(provider))
    machine = await provider.create(request)
    assert await provider.find(request.label) == []
    assert await provider.get(machine.ref) is not None
    assert provider.traits()[0].create_grace_ms >= 10_000
    vast.switch(list_lag_ms=0)
    assert [each.ref for each in await provider.find(request.label)] == [machine.ref]


# 13


async def test_a_container_may_run_without_its_gpu(vast: EmulatedVast, provider: VastProvider) -> None:
    """Running says nothing about the GPU: what runs there has to test it, for the API will not tell."""
    vast.fault("create", "broken_gpu")
    machine = await rent(provider, AGENT="echo gpu=$NVIDIA_VISIBLE_DEVICES; exec sleep 600")
    assert (await runs(provider, machine.ref)).detail.startswith("running")
    eventually(lambda: "gpu=void" in vast.log_of(machine.ref))
    row = vast.api.get(f"/api/v0/instances/{machine.ref}/").json()["instances"]
    assert (row["cuda_max_good"], row["driver_version"], row["actual_status"]) == (11.4, "470.256.02", "running")


ASKS = "$ALLPASS_AGENT_NVIDIA_SMI --query-gpu=index,name,memory.total,driver_version --format=csv,noheader,nounits"


async def test_a_machine_shows_the_gpus_that_were_rented_or_others(vast: EmulatedVast, provider: VastProvider) -> None:
    """Its agent has an nvidia-smi to ask; what is wrong with a GPU, or goes wrong later, is seen there and nowhere
    else."""
    agent = f"while :; do echo gpus=$({ASKS}); sleep 0.2; done"
    good = await rent(provider, AGENT=agent)
    vast.fault("create", "bad_gpus", args={"wrong": "kind"})
    other = await rent(provider, AGENT=agent)
    for machine in (good, other):
        assert (await runs(provider, machine.ref)).detail.startswith("running")
    row = vast.api.get(f"/api/v0/instances/{good.ref}/").json()["instances"]
    shown = f", {row['gpu_ram']}, {row['driver_version']}"
    eventually(lambda: shown in vast.log_of(good.ref))
    eventually(lambda: "NVIDIA GeForce GTX 1080" in vast.log_of(other.ref))
    assert "GTX 1080" not in vast.log_of(good.ref)
    vast.act(good.ref, "gpus", wrong="lost")
    eventually(lambda: "GPU is lost" in vast.log_of(good.ref))
    refused = vast.admin.post(f"/admin/machines/{good.ref}/gpus", json={"wrong": "stolen"})
    assert refused.status_code in {400, 409, 422}
    assert "it needs GPUs, and one of: missing, kind" in refused.text


# 14


async def test_odd_data_is_read(vast: EmulatedVast, provider: VastProvider) -> None:
    """No CPU count, odd places, white space, no ports: an odd host can be compared and rented as any other."""
    odd = next(row for row in vast.search(limit=1_000) if row["cpu_cores"] is None)
    assert odd["public_ipaddr"].endswith("\n")
    offer = next(each for each in await provider.offers() if each.offer_id == str(odd["id"]))
    assert (offer.gpu_count, offer.cpus) == (odd["num_gpus"], int(odd["cpu_cores_effective"]))
    assert offer.region in {"US", "NO", ""}
    machine = await provider.create(request_for(offer))
    assert (await runs(provider, machine.ref)).price_per_hour == offer.price_per_hour
    row = vast.api.get(f"/api/v0/instances/{machine.ref}/").json()["instances"]
    assert (row["cpu_cores"], row["ports"], row["actual_status"]) == (None, None, "running")
    assert is_id(row["label"], "node")


def test_numbers_come_as_numbers(vast: EmulatedVast) -> None:
    """The company's own client computes with them; what is a text at every host is one at all of them."""
    rows = vast.search(limit=1_000)
    kinds = {name: {type(row[name]) for row in rows} - {type(None), int} for name in rows[0]}
    assert {name: told for name, told in kinds.items() if len(told) > 1} == {}
    assert {str} not in [kinds[name] for name in ("num_gpus", "dph_base", "dph_total", "gpu_ram", "cuda_max_good")]


def test_a_card_has_its_own_capability_and_a_driver_that_knows_it(vast: EmulatedVast) -> None:
    """The CUDA that a host's driver knows goes with the driver, and no driver is older than its card."""
    rows = vast.search(limit=1_000)
    assert {row["gpu_name"]: row["compute_cap"] for row in rows} | {
        "RTX 4090": 890,
        "Tesla T4": 750,
        "H100 SXM": 900,
    } == {row["gpu_name"]: row["compute_cap"] for row in rows}
    drivers = {(row["cuda_max_good"], row["driver_version"].partition(".")[0]) for row in rows}
    assert drivers <= {(12.4, "550"), (12.8, "570"), (13.0, "580")}
    assert all(row["cuda_max_good"] >= 12.8 for row in rows if row["gpu_name"] == "RTX 5080")


# 15


def test_prices_and_supply_drift_within_a_day() -> None:
    """Within days the price of an A100 moves by half, and 40 to 60 of them are for rent."""
    market = EmulatedMarket(GOODS, seed=1, speed=1.0, origin_ms=0)
    hours = [hour * 3_600_000 for hour in range(24 * 14)]
    prices = [market.price_micros("A100 SXM4", at_ms) for at_ms in hours]
    best = max(max(prices[i : i + 24]) / min(prices[i : i + 24]) for i in range(len(hours) - 24))
    assert best > 1.4
    counts = [sum(market.supply(name, at_ms) for name in ("A100 SXM4", "A100 PCIE")) for at_ms in hours]
    assert 40 <= min(counts) <= max(counts) <= 60


async def test_a_price_that_moves_after_the_search_is_not_paid(vast: EmulatedVast, provider: VastProvider) -> None:
    """What is rented costs what it costs at that moment; more than was agreed is given back at once."""
    request = request_for(await cheapest(provider))
    ok(vast.admin.post("/admin/market", json={"price_micros": {"Tesla T4": 150_000}}))
    with pytest.raises(PriceMoved):
        await provider.create(request)
    assert vast.live() == []
    ok(vast.admin.post("/admin/market", json={"price_micros": {"Tesla T4": 140_000}}))
    machine = await rent(provider)
    ok(vast.admin.post("/admin/market", json={"price_micros": {"Tesla T4": 900_000}}))
    later = await provider.get(machine.ref)
    assert later is not None
    assert later.price_per_hour == machine.price_per_hour  # of a contract it is fixed


# 16


async def test_the_bill_is_gpu_time_disk_and_traffic(vast: EmulatedVast, provider: VastProvider) -> None:
    """GPU by the second while running, disk from create to destroy, bytes: the adapter ends up with the same sum."""
    machine = await rent(provider)
    await runs(provider, machine.ref)
    vast.act(machine.ref, "traffic", down_bytes=3_000_000_000, up_bytes=500_000_000)
    await provider.terminate(machine.ref)
    ended = await provider.get(machine.ref)
    bill = vast.machine(machine.ref)["bill"]
    assert ended is not None
    assert ended.billed == Money(bill["amount_micros"])
    assert bill["billed_ms"] % 1_000 == 0
    assert bill["amount_micros"] >= bill["billed_ms"] * bill["price_micros_per_hour"] // 3_600_000 + 3_500


async def test_a_contract_that_never_ran_costs_its_disk(vast: EmulatedVast, provider: VastProvider) -> None:
    """While it loads a contract costs no GPU time, and its disk all the same."""
    vast.fault("create", "stuck")
    machine = await rent(provider)
    eventually(lambda: vast.machine(machine.ref)["bill"]["amount_micros"] > 0)
    await provider.terminate(machine.ref)
    ended = await provider.get(machine.ref)
    bill = vast.machine(machine.ref)["bill"]
    assert ended is not None
    assert (ended.billed_from_ms, bill["from_ms"], bill["billed_ms"]) == (None, None, 0)
    assert ended.billed == Money(bill["amount_micros"])
