"""The RunPod adapter on its own: what it asks, what it makes of answers, and what it never does."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.core.model.money import Money
from app.core.model.node import Tier
from app.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    OutcomeUnknown,
    PriceMoved,
    ProviderError,
    QuotaExceeded,
    Transient,
)
from app.ports.provider import MachineStatus
from app.settings import Settings
from app.wiring import build_providers
from providers.conformance.suite import cheapest, new_label, request_for
from providers.runpod.adapter import RunpodProvider
from providers.runpod.catalogue import disk_per_hour, offer_id, our_name, read_offers, split_offer_id
from providers.runpod.options import RunpodOptions
from providers.runpod.order import create_body
from providers.runpod.pods import Pods
from tests.providers.cloud_process import WallClock, eventually
from tests.providers.emulators.process import EmulatorProcess
from tests.providers.lambda_account import NoWait
from tests.providers.runpod_account import RunpodAccount, provider

OPTIONS = RunpodOptions("key", "https://api.runpod.io")
A6000 = {
    "id": "NVIDIA RTX A6000",
    "name": "RTX A6000",
    "pool": None,
    "manufacturer": "NVIDIA",
    "memory": 48,
    "secure": True,
    "community": True,
    "price": {"secure": 0.49, "community": 0.33},
    "maxCount": {"secure": 8, "community": 4},
    "availability": "HIGH",
    "dataCenters": [{"id": "US-TX-3", "name": "US Texas 3", "availability": "LOW"}],
}
POD = {"id": "p1", "name": "node_x", "status": "RUNNING", "cloud": "SECURE", "cost": 0.49, "disk": 64}


@pytest.fixture
async def runpod(shared_runpod: EmulatorProcess) -> AsyncIterator[RunpodProvider]:
    one = provider(shared_runpod.url)
    yield one
    await one.close()


# -- the catalog


def test_an_offer_costs_what_will_be_billed_and_promises_what_is_asked_for() -> None:
    """GPUs and the container's disk; CPUs and memory are those that the order demands of a host."""
    (offer,) = read_offers([A6000], "COMMUNITY", 2, replace(OPTIONS, cpus=6, memory_gb=30, disk_gb=100))
    assert (offer.gpu_type, offer.gpu_count, offer.gpu_memory_bytes >> 30) == ("RTXA6000", 2, 48)
    assert (offer.tier, offer.cpus, offer.memory_bytes) == (Tier.MARKETPLACE, 12, 60 * 10**9)
    assert offer.price_per_hour == Money(660_000) + Money(13_889)  # 100 GB at $0.10 a month of 720 hours
    assert disk_per_hour(100) == Money(13_889)


@pytest.mark.parametrize(
    "change",
    [
        {"availability": "NONE"},
        {"availability": None},
        {"manufacturer": "AMD"},
        {"price": {"community": 0.33}},
        {"price": {"secure": 0}},
        {"price": {"secure": "0.49"}},
        {"maxCount": {"secure": 1}},
        {"memory": 0},
        {"id": "a_b"},
        {"name": None},
    ],
)
def test_what_cannot_be_rented_or_makes_no_sense_is_left_out(change: dict[str, Any]) -> None:
    """One row of nonsense does not hide the others."""
    offers = read_offers([{**A6000, **change}, None, {**A6000, "id": "other"}], "SECURE", 2, OPTIONS)
    assert [offer.offer_id for offer in offers] == ["secure/2x/other"]


def test_only_the_data_centers_that_were_named_count() -> None:
    """Stock elsewhere is none."""
    assert read_offers([A6000], "SECURE", 1, replace(OPTIONS, data_centers=("EU-RO-1",))) == []
    (offer,) = read_offers([A6000], "SECURE", 1, replace(OPTIONS, data_centers=("US-TX-3",)))
    assert offer.region == "US-TX-3"


@given(
    st.sampled_from(["SECURE", "COMMUNITY"]),
    st.integers(1, 9999),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9. -]{0,30}[A-Z]", fullmatch=True),
)
def test_the_id_of_an_offer_is_read_as_it_was_written(cloud: str, count: int, gpu_id: str) -> None:
    """It is one word for the command line, and names what is ordered."""
    text = offer_id(cloud, count, gpu_id)
    assert " " not in text
    assert split_offer_id(text) == (cloud, count, gpu_id)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("RTX 4090", "RTX4090"), ("A100 SXM", "A100"), ("H100 NVL", "H100"), ("H200 SXM", "H200"), ("L40S", "L40S"),
     ("NVIDIA GeForce RTX 4090", "RTX4090"), ("A40", "A40"), ("RTX A6000", "RTXA6000")],
)  # fmt: skip
def test_gpus_have_the_names_that_all_providers_share(theirs: str, ours: str) -> None:
    """A job that asks for an A100 gets one in any form."""
    assert our_name(theirs) == ours


# -- what is ordered


async def test_the_order_says_everything_that_was_promised(runpod: RunpodProvider) -> None:
    """Name, image, GPUs, hosts whose driver is new enough, and the script where nothing needs to be quoted."""
    offer = await cheapest(cast("Any", _Only(runpod)))
    request = request_for(offer)
    body = create_body(request, "#!/bin/sh\necho 'it''s \"me\"'\n", replace(OPTIONS, data_centers=("US-TX-3",)))
    assert (body["name"], body["image"], body["cloud"]) == (request.label, request.image, "SECURE")
    assert body["gpu"]["minCudaVersion"] == "13.0"
    assert body["gpu"]["minRamPerGpu"] == 24
    assert body["dataCenterIds"] == ["US-TX-3"]
    assert base64.b64decode(body["env"]["ALLPASS_BOOTSTRAP"]).decode().startswith("#!/bin/sh")
    assert body["env"]["ALLPASS_AGENT_ENDS"] == "https://api.runpod.io/v2/pods/{RUNPOD_POD_ID} RUNPOD_API_KEY"
    assert "key" not in json.dumps({name: value for name, value in body["env"].items() if "ENDS" not in name})


class _Only:
    def __init__(self, one: RunpodProvider) -> None:
        self.provider, self.tiers = one, frozenset({Tier.CONVENTIONAL})


async def test_a_pod_runs_the_script_as_its_own_process(runpod: RunpodProvider, shared_runpod: EmulatorProcess) -> None:
    """Quotes and lines arrive as they were."""
    script = "echo 'one  two' \"$ALLPASS_URL\"\nexec sleep 600\n"
    one = provider(shared_runpod.url, bootstrap=lambda _: script)
    machine = await one.create(request_for(await cheapest(cast("Any", _Only(one)))))
    shared_runpod.until(machine.ref, "running")
    eventually(lambda: "one  two http://127.0.0.1:9" in shared_runpod.log_of(machine.ref))
    await one.close()


# -- money and machines


async def test_a_pod_that_costs_more_than_agreed_is_deleted_at_once(
    runpod: RunpodProvider, shared_runpod: EmulatorProcess, runpod_account: RunpodAccount
) -> None:
    """The catalog's price is no promise: what the new pod costs is compared."""
    request = request_for(await cheapest(cast("Any", _Only(runpod))))
    shared_runpod.fault(op="create", kind="price_moves")
    with pytest.raises(PriceMoved):
        await runpod.create(request)
    assert runpod_account.pods() == []


async def test_a_pod_that_nobody_wants_and_that_cannot_be_deleted_is_not_found(
    runpod: RunpodProvider, shared_runpod: EmulatorProcess, runpod_account: RunpodAccount
) -> None:
    """It is told as unknown, and whoever looks for it has it deleted first."""
    request = request_for(await cheapest(cast("Any", _Only(runpod))))
    shared_runpod.fault(op="create", kind="price_moves")
    shared_runpod.fault(op="delete", kind="error", args={"status": 500})
    with pytest.raises(OutcomeUnknown, match="not deleted"):
        await runpod.create(request)
    assert len(runpod_account.pods()) == 1
    assert await runpod.find(request.label) == []
    assert runpod_account.pods() == []


async def test_a_pod_that_never_comes_to_be_is_over_after_the_grace_and_not_before(
    runpod: RunpodProvider, shared_runpod: EmulatorProcess
) -> None:
    """A create may name a pod that nobody ever sees. One that is on its way is not taken for ended."""
    shared_runpod.fault(op="create", kind="ghost")
    machine = await runpod.create(request_for(await cheapest(cast("Any", _Only(runpod)))))
    slow = provider(shared_runpod.url, create_grace_ms=600_000)
    slow._pods._sightings = runpod._pods._sightings
    with pytest.raises(Transient, match="cannot be seen yet"):
        await slow.get(machine.ref)
    runpod._pods._create_grace_ms = 0
    over = await runpod.get(machine.ref)
    assert over is not None
    assert (over.status, over.billed_from_ms) == (MachineStatus.ENDED, None)
    await slow.close()


async def test_pods_of_others_are_neither_listed_nor_touched(
    runpod: RunpodProvider, runpod_account: RunpodAccount
) -> None:
    """Names are not unique and everybody's: only a node's id is ours."""
    theirs = [runpod_account.created(name=name) for name in ("node", "node_", "my-pod", f"{new_label()}-copy")]
    assert await runpod.list_owned() == []
    assert {pod["id"] for pod in runpod_account.pods()} == set(theirs)


async def test_a_pod_whose_host_goes_down_is_told_as_stopped_and_costs_no_more(
    runpod: RunpodProvider, shared_runpod: EmulatorProcess
) -> None:
    """EXITED: listed, without GPUs, for nothing."""
    machine = await runpod.create(request_for(await cheapest(cast("Any", _Only(runpod)))))
    shared_runpod.until(machine.ref, "running")
    assert (await runpod.get(machine.ref)).status is MachineStatus.RUNNING  # type: ignore[union-attr]
    shared_runpod.act(machine.ref, "exit")
    stopped = await runpod.get(machine.ref)
    assert stopped is not None
    assert (stopped.status, stopped.price_per_hour) == (MachineStatus.STOPPED, machine.price_per_hour)
    assert stopped.billed_to_ms is not None


async def test_a_process_that_did_not_rent_it_knows_what_it_costs(
    runpod: RunpodProvider, shared_runpod: EmulatorProcess
) -> None:
    """After a restart: tier, price, name and start come from the listing."""
    machine = await runpod.create(request_for(await cheapest(cast("Any", _Only(runpod)))))
    shared_runpod.until(machine.ref, "running")
    other = provider(shared_runpod.url)
    (seen,) = await other.list_owned()
    assert (seen.ref, seen.label, seen.tier) == (machine.ref, machine.label, machine.tier)
    assert (seen.price_per_hour, seen.status) == (machine.price_per_hour, MachineStatus.RUNNING)
    assert seen.billed_from_ms is not None
    await other.close()


async def test_every_call_waits_for_its_turn(shared_runpod: EmulatorProcess) -> None:
    """All in one lane: the limit is the account's."""
    pace = NoWait()
    one = provider(shared_runpod.url, pace=pace)
    request = request_for(await cheapest(cast("Any", _Only(one))))
    assert pace.turns == [("call", 1_250)] * 2  # one and two GPUs
    machine = await one.create(request)
    await one.get(machine.ref)
    await one.terminate(machine.ref)
    assert pace.turns == [("call", 1_250)] * 6
    await one.close()


# -- answers


def answering(respond: Callable[[httpx.Request], httpx.Response]) -> RunpodProvider:
    one = provider("http://runpod.test", create_grace_ms=0)
    one._wire._http = httpx.AsyncClient(transport=httpx.MockTransport(respond), base_url="http://runpod.test")
    return one


def problem(status: int, detail: str = "no", **more: Any) -> httpx.Response:
    return httpx.Response(status, json={"title": "x", "status": status, "detail": detail, **more})


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (problem(400, "There are no longer any instances available"), NoCapacity),
        (problem(400, "words of later days"), NoCapacity),
        (problem(400, "cross-field", errors=[{"location": "body.gpu", "message": "wrong"}]), InvalidRequest),
        (problem(401), AuthFailed),
        (problem(402, "balance"), QuotaExceeded),
        (problem(403), AuthFailed),
        (problem(422), InvalidRequest),
        (problem(500), OutcomeUnknown),
        (httpx.Response(504, text="<html>gateway"), OutcomeUnknown),
        (httpx.Response(400, text="<html>a proxy"), InvalidRequest),
        (httpx.Response(201, text="not json"), OutcomeUnknown),
        (httpx.Response(201, json={"status": "PROVISIONING"}), OutcomeUnknown),
    ],
)
async def test_what_a_create_is_answered(answer: httpx.Response, raised: type[ProviderError]) -> None:
    """No capacity is tried elsewhere, a wrong order is not, and what is not clear is looked up before anything else."""
    posted = []

    def respond(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            posted.append(request)
            return answer
        return httpx.Response(200, json=A6000)

    one = answering(respond)
    (offer,) = read_offers([A6000], "SECURE", 1, one._options)
    with pytest.raises(raised):
        await one.create(request_for(offer))
    assert len(posted) == 1
    await one.close()


async def test_only_runpod_says_that_there_is_no_such_pod() -> None:
    """A 404 of a proxy is no answer: a machine that it hides would be forgotten, and paid for."""
    for answer, raised in (
        (httpx.Response(404, text="<html>"), ProviderError),
        (httpx.Response(404, json={}), ProviderError),
    ):
        one = answering(lambda _, answer=answer: answer)
        with pytest.raises(raised):
            await one.get("p1")
        with pytest.raises(raised):
            await one.terminate("p1")
        await one.close()
    one = answering(lambda _: problem(404))
    assert await one.get("p1") is None
    await one.terminate("p1")
    await one.close()


async def test_a_pod_that_is_locked_is_tried_again() -> None:
    """Somebody has locked it in the console: it may be ended later."""
    one = answering(lambda _: problem(400, "pod is locked"))
    with pytest.raises(Transient, match="locked"):
        await one.terminate("p1")
    await one.close()


@pytest.mark.parametrize("row", [{}, {"id": "p1"}, {"id": 5, "status": "RUNNING"}, {"id": "p1", "status": None}])
def test_a_pod_that_cannot_be_read_is_no_answer(row: dict[str, Any]) -> None:
    """Nothing is concluded from it."""
    with pytest.raises(Transient):
        Pods(WallClock(), create_grace_ms=0).see(row)


def test_a_status_of_later_days_is_a_machine_that_may_cost() -> None:
    """It is not taken for ended."""
    seen = Pods(WallClock(), create_grace_ms=0).see({**POD, "status": "HIBERNATING"})
    assert (seen.status, seen.detail) == (MachineStatus.RUNNING, "hibernating")


@given(
    st.dictionaries(
        st.sampled_from(["name", "cloud", "cost", "disk", "createdAt", "startedAt", "status"]),
        st.one_of(st.none(), st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.lists(st.none())),
    )
)
def test_whatever_a_pod_says_it_is_read_or_refused(said: dict[str, Any]) -> None:
    """Nonsense in one field never ends a listing in another way than Transient."""
    try:
        machine = Pods(WallClock(), create_grace_ms=0).see({**POD, **said})
    except Transient:
        return
    assert machine.price_per_hour >= Money(0)
    assert machine.billed_to_ms is None or machine.billed_to_ms >= (machine.billed_from_ms or 0)


# -- settings


def settings(**given: Any) -> Settings:
    required = {"database_url": "postgresql://a", "secret_key": "k" * 32, "objects_signing_key": "s" * 32}
    return Settings(**required, **given)


async def test_without_a_key_the_provider_is_absent() -> None:
    """No key, no provider; with one it is there, with a tier for each cloud, as the settings say."""
    database = cast("Any", None)
    assert "runpod" not in build_providers(settings(), WallClock(), database)
    given = {"runpod_api_key": "k", "runpod_clouds": ["SECURE", "COMMUNITY"], "runpod_startup_s": 5}
    one = build_providers(settings(**given, runpod_startup_deadline_s=40), WallClock(), database)["runpod"]
    assert {traits.tier for traits in one.traits()} == {Tier.CONVENTIONAL, Tier.MARKETPLACE}
    assert {(traits.startup_mean_ms, traits.startup_deadline_ms) for traits in one.traits()} == {(5_000, 40_000)}
    assert settings(runpod_cuda=12.8).promised_cuda["runpod"] == 12.8
    await one.close()


@pytest.mark.parametrize(
    "wrong",
    [{"runpod_clouds": ["PUBLIC"]}, {"runpod_clouds": []}, {"runpod_gpu_counts": [0]}, {"runpod_disk_gb": 1}],
)
def test_a_wrong_value_is_told(wrong: dict[str, Any]) -> None:
    """At the start, by its name."""
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        settings(**wrong)
