"""The Lambda adapter by itself: what it sends, what it makes of odd answers, and what it remembers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
import respx

from app.core.model.ids import make_id
from app.core.model.money import Money
from app.core.model.offer import Offer
from app.errors import AuthFailed, InvalidRequest, OutcomeUnknown, RateLimited, Transient
from app.ports.provider import MachineRequest, MachineStatus
from app.settings import Settings
from app.wiring import build_providers
from providers.conformance.suite import request_for
from providers.lambda_cloud.adapter import LambdaProvider
from providers.lambda_cloud.catalogue import read_offers
from providers.lambda_cloud.options import LambdaOptions
from tests.providers.cloud_process import eventually
from tests.providers.emulators.process import KEY, EmulatorProcess
from tests.providers.lambda_account import NoWait, idle_script

BASE = "http://lambda.test"
API = f"{BASE}/api/v1"
LABEL = make_id("node", 1_700_000_000_000, 7)
A10 = {
    "name": "gpu_1x_a10",
    "description": "1x A10 (24 GB PCIe)",
    "price_cents_per_hour": 75,
    "specs": {"vcpus": 30, "memory_gib": 200, "storage_gib": 1400},
    "colour": "not in the schema of today",
}
TYPES = {
    "gpu_1x_a10": {"instance_type": A10, "regions_with_capacity_available": [{"name": "us-east-1", "description": "V"}]}
}


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.at_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.at_ms

    async def sleep_ms(self, _: int) -> None:
        raise AssertionError("an adapter never sleeps")


class Ours:
    """The adapter with its clock and pace in hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.pace = NoWait()
        self.provider = self.another()

    def another(self) -> LambdaProvider:
        options = LambdaOptions("secret-key", "my-key", BASE, timeout_s=5)
        return LambdaProvider(options, clock=self.clock, pace=self.pace, bootstrap=idle_script)


@pytest.fixture
async def ours() -> AsyncIterator[Ours]:
    ours = Ours()
    yield ours
    await ours.provider.close()


@pytest.fixture
def lambda_api() -> Any:
    with respx.mock(base_url=API, assert_all_called=False) as mock:
        mock.get("/instance-types").respond(json={"data": TYPES})
        yield mock


def instance(**fields: Any) -> dict[str, Any]:
    row = {"id": "i-1", "status": "active", "instance_type": A10, "name": LABEL, "region": {"name": "us-east-1"}}
    return {name: value for name, value in (row | fields).items() if value is not None}


def an_offer() -> Offer:
    return read_offers(TYPES, LambdaOptions("", ""))[0]


def a_request() -> MachineRequest:
    return replace(request_for(an_offer()), label=LABEL)


# -- what is sent


async def test_a_launch_is_one_named_and_tagged_instance(ours: Ours, lambda_api: Any) -> None:
    """The launch names type, region, exactly one key, our label as name and tag, and the script; with our key."""
    launch = lambda_api.post("/instance-operations/launch").respond(json={"data": {"instance_ids": ["i-1"]}})
    machine = await ours.provider.create(a_request())
    sent = launch.calls.last.request
    assert sent.headers["authorization"] == "Bearer secret-key"
    assert json.loads(sent.content) == {
        "region_name": "us-east-1",
        "instance_type_name": "gpu_1x_a10",
        "ssh_key_names": ["my-key"],
        "name": LABEL,
        "user_data": idle_script(a_request()),
        "tags": [
            {"key": "allpass_node", "value": LABEL},
            {"key": "allpass_created_ms", "value": str(ours.clock.at_ms)},
        ],
    }
    assert (machine.ref, machine.label, machine.status) == ("i-1", LABEL, MachineStatus.BOOTING)
    assert machine.price_per_hour == Money.usd("0.75")
    assert launch.call_count == 1


async def test_every_call_takes_its_turn(ours: Ours, lambda_api: Any) -> None:
    """All calls go through one lane, launches through a second one before it."""
    lambda_api.post("/instance-operations/launch").respond(json={"data": {"instance_ids": ["i-1"]}})
    lambda_api.post("/instance-operations/terminate").respond(json={"data": {"terminated_instances": []}})
    lambda_api.get("/instances").respond(json={"data": []})
    lambda_api.get("/instances/i-1").respond(json={"data": instance()})
    await ours.provider.create(a_request())
    await ours.provider.get("i-1")
    await ours.provider.list_owned()
    await ours.provider.terminate("i-1")
    assert [lane for lane, _ in ours.pace.turns] == ["call", "launch", "call", "call", "call", "call"]
    assert dict(ours.pace.turns) == {"call": 1_100, "launch": 12_500}


async def test_a_turn_that_is_too_far_away_sends_nothing(ours: Ours, lambda_api: Any) -> None:
    """When the launch's turn is refused by our own pace, nothing was launched and the waiting time is told."""

    class Refusing(NoWait):
        async def turn(self, lane: str, every_ms: int) -> None:
            if lane == "launch":
                raise RateLimited("not yet", retry_after_ms=9_000)

    launch = lambda_api.post("/instance-operations/launch")
    options = LambdaOptions("k", "my-key", BASE)
    provider = LambdaProvider(options, clock=ours.clock, pace=Refusing(), bootstrap=idle_script)
    with pytest.raises(RateLimited) as refused:
        await provider.create(a_request())
    await provider.close()
    assert refused.value.retry_after_ms == 9_000
    assert not launch.called


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (replace(a_request(), label="x" * 65), "1 to 64 characters"),
        (replace(a_request(), offer=replace(an_offer(), provider="vast")), "not one of provider lambda"),
    ],
)
async def test_what_cannot_be_launched_is_not_tried(
    ours: Ours, lambda_api: Any, request_: MachineRequest, words: str
) -> None:
    """A request that Lambda would refuse is refused before any call."""
    with pytest.raises(InvalidRequest, match=words):
        await ours.provider.create(request_)
    assert not lambda_api.calls


async def test_user_data_that_is_no_script_is_not_sent(ours: Ours, lambda_api: Any) -> None:
    """cloud-init runs only what begins with #!; a megabyte is the limit."""
    for script in ("echo hello", "#!" + "x" * 1_000_000):
        options = LambdaOptions("k", "my-key", BASE)
        provider = LambdaProvider(options, clock=ours.clock, pace=ours.pace, bootstrap=lambda _, text=script: text)
        with pytest.raises(InvalidRequest, match="user data"):
            await provider.create(a_request())
        await provider.close()
    assert not lambda_api.calls


# -- odd answers


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, json={"data": {"instance_ids": []}}),
        httpx.Response(200, json={"data": {}}),
        httpx.Response(200, json=["i-1"]),
        httpx.Response(200, text="<html>"),
        httpx.Response(302, headers={"Location": "/elsewhere"}),
        httpx.Response(404, text="not found"),
        httpx.Response(502, text="<html>bad gateway</html>"),
        httpx.Response(400, json={"error": "odd"}),
    ],
    ids=lambda answer: f"{answer.status_code} {answer.text[:20]}",
)
async def test_an_unclear_answer_to_a_launch_is_unknown(ours: Ours, lambda_api: Any, answer: httpx.Response) -> None:
    """Whatever is not a clear yes or a documented no leaves the outcome open."""
    lambda_api.post("/instance-operations/launch").mock(return_value=answer)
    with pytest.raises(OutcomeUnknown):
        await ours.provider.create(a_request())


async def test_a_launch_without_a_connection_did_not_happen(ours: Ours, lambda_api: Any) -> None:
    """A launch that was never sent is Transient; one that timed out while waiting is unknown."""
    launch = lambda_api.post("/instance-operations/launch")
    launch.mock(side_effect=httpx.ConnectError("refused"))
    with pytest.raises(Transient):
        await ours.provider.create(a_request())
    launch.mock(side_effect=httpx.ReadTimeout("late"))
    with pytest.raises(OutcomeUnknown):
        await ours.provider.create(a_request())


async def test_each_call_has_a_deadline_of_our_own(ours: Ours, lambda_api: Any) -> None:
    """A server that trickles bytes for ever does not hold us longer than the deadline."""
    release = asyncio.Event()

    async def trickle(_: httpx.Request) -> httpx.Response:
        await release.wait()
        return httpx.Response(200)

    lambda_api.get("/instances").mock(side_effect=trickle)
    options = LambdaOptions("k", "my-key", BASE, timeout_s=0.05)
    provider = LambdaProvider(options, clock=ours.clock, pace=ours.pace, bootstrap=idle_script)
    with pytest.raises(Transient, match="did not answer"):
        await provider.list_owned()
    release.set()
    await provider.close()


@pytest.mark.parametrize(
    "rows",
    [[{"status": "active"}], [{"id": "i-1"}], [{"id": "i-1", "status": "active"}], ["i-1"], {"id": "i-1"}, None],
)
async def test_a_list_that_lacks_what_is_needed_is_no_list(ours: Ours, lambda_api: Any, rows: Any) -> None:
    """A listing that cannot be read whole says nothing: it is never taken for an empty one."""
    lambda_api.get("/instances").respond(json={"data": rows})
    with pytest.raises(Transient):
        await ours.provider.list_owned()


@pytest.mark.parametrize(
    ("word", "status", "detail"),
    [
        ("booting", MachineStatus.BOOTING, ""),
        ("active", MachineStatus.RUNNING, ""),
        ("unhealthy", MachineStatus.RUNNING, "unhealthy"),
        ("preempted", MachineStatus.STOPPED, "preempted"),
        ("terminating", MachineStatus.STOPPED, "terminating"),
        ("terminated", MachineStatus.ENDED, "terminated"),
        ("hibernating", MachineStatus.RUNNING, "hibernating"),
    ],
)
async def test_statuses_are_told_in_our_words(
    ours: Ours, lambda_api: Any, word: str, status: MachineStatus, detail: str
) -> None:
    """Each status of today has its meaning; one of later days exists and may cost."""
    lambda_api.get("/instances/i-1").respond(json={"data": instance(status=word, novelty={"a": 1})})
    machine = await ours.provider.get("i-1")
    assert machine is not None
    assert (machine.status, machine.detail) == (status, detail)


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"tags": [{"key": "allpass_node", "value": LABEL}], "name": "renamed"}, LABEL),
        ({"tags": [{"key": "other", "value": "x"}]}, LABEL),
        ({"tags": None}, LABEL),
        ({"tags": ["odd", {"key": "allpass_node"}]}, LABEL),
        ({"tags": [], "name": "somebody-elses"}, None),
        ({"tags": None, "name": None}, None),
    ],
)
async def test_ours_are_known_by_tag_else_by_name(
    ours: Ours, lambda_api: Any, fields: dict[str, Any], label: str | None
) -> None:
    """The tag counts, also for a machine that was renamed; without it the name does."""
    lambda_api.get("/instances").respond(json={"data": [instance(**fields)]})
    assert [machine.label for machine in await ours.provider.list_owned()] == ([label] if label else [])


async def test_a_wrong_address_never_looks_like_nothing_there(ours: Ours, lambda_api: Any) -> None:
    """A 404 that is not Lambda's own word is no answer about a machine."""
    lambda_api.get("/instances/i-1").respond(404, text="no such page")
    lambda_api.post("/instance-operations/terminate").respond(404, text="no such page")
    with pytest.raises(Transient):
        await ours.provider.get("i-1")
    with pytest.raises(Transient):
        await ours.provider.terminate("i-1")
    lambda_api.get("/instances").respond(403, text="forbidden")
    with pytest.raises(AuthFailed):
        await ours.provider.list_owned()


# -- what it remembers


async def test_billing_is_told_from_what_was_seen(ours: Ours, lambda_api: Any) -> None:
    """From the first look that showed it active to the moment its termination was accepted, and then no more."""
    look = lambda_api.get("/instances/i-1")
    lambda_api.post("/instance-operations/launch").respond(json={"data": {"instance_ids": ["i-1"]}})
    lambda_api.post("/instance-operations/terminate").respond(json={"data": {"terminated_instances": []}})
    await ours.provider.create(a_request())
    began_ms = ours.clock.at_ms
    told = []
    for word in ("booting", "active", "active", "terminate", "terminating", None):
        ours.clock.at_ms += 1_000
        if word == "terminate":
            await ours.provider.terminate("i-1")
            continue
        missing = {"error": {"code": "global/object-does-not-exist", "message": "gone"}}
        look.mock(
            return_value=httpx.Response(404, json=missing)
            if word is None
            else httpx.Response(200, json={"data": instance(status=word)})
        )
        machine = await ours.provider.get("i-1")
        assert machine is not None
        told.append(tuple(ms and ms - began_ms for ms in (machine.billed_from_ms, machine.billed_to_ms)))
    assert told == [(None, None), (2_000, None), (2_000, None), (2_000, None), (2_000, 4_000)]
    another = ours.another()
    assert await another.get("i-1") is None
    await another.close()


async def test_when_it_was_created_is_known_to_every_process(ours: Ours, lambda_api: Any) -> None:
    """The tag of the launch tells the age, so that a sweep after a restart leaves young machines alone."""
    tags = [{"key": "allpass_node", "value": LABEL}, {"key": "allpass_created_ms", "value": "1699999999000"}]
    lambda_api.get("/instances").respond(json={"data": [instance(tags=tags)]})
    assert [machine.created_ms for machine in await ours.provider.list_owned()] == [1_699_999_999_000]


# -- offers


def test_offers_are_read_from_types_of_every_kind() -> None:
    """Memory from the description, else from the name, else as known; what has no GPU or price is left out."""
    capacity = [{"name": "us-east-1"}, {"name": "us-west-1"}]
    types = {
        name: {"instance_type": {**A10, "name": name, **extra}, "regions_with_capacity_available": capacity}
        for name, extra in {
            "gpu_1x_a10": {},
            "gpu_8x_a100_80gb_sxm4": {"description": "8x A100", "specs": {"vcpus": 1, "memory_gib": 1, "gpus": 8}},
            "gpu_8x_v100": {"description": None, "gpu_description": "Tesla V100"},
            "gpu_1x_abacus": {"description": "1x Abacus"},
            "cpu_4x_general": {"description": "4 vCPUs"},
            "gpu_1x_h100_pcie": {"description": "1x H100 (80 GB PCIe)", "price_cents_per_hour": None},
            "gpu_1x_gh200": {"description": "1x GH200 (96 GB)", "specs": {}},
        }.items()
    }
    offers = read_offers({**types, "odd": 5, "gpu_1x_a6000": {}}, LambdaOptions("", "", regions=("us-west-1",)))
    found = {o.offer_id: (o.gpu_type, o.gpu_count, o.gpu_memory_bytes >> 30, o.startup_ms) for o in offers}
    assert found == {
        "gpu_1x_a10@us-west-1": ("A10", 1, 24, 255_590),
        "gpu_8x_a100_80gb_sxm4@us-west-1": ("A100", 8, 80, 900_000),
        "gpu_8x_v100@us-west-1": ("V100", 8, 16, 900_000),
    }
    everywhere = read_offers(types, LambdaOptions("", ""))
    assert len(everywhere) == 6
    assert len({offer.key for offer in everywhere}) == 6


# -- settings


def settings(**given: Any) -> Settings:
    required = {"database_url": "postgresql://a", "secret_key": "k" * 32, "objects_signing_key": "s" * 32}
    return Settings(**required, **given)


async def test_without_a_key_the_provider_is_absent() -> None:
    """No key, no provider; with one it is there, as the settings say."""
    database = cast("Any", None)
    assert "lambda" not in build_providers(settings(), Clock(), database)
    given = {"lambda_api_key": "k", "lambda_ssh_key": "mine", "lambda_url": BASE, "lambda_startup_s": 5}
    provider = build_providers(settings(**given, lambda_startup_deadline_s=40), Clock(), database)["lambda"]
    traits = provider.traits()[0]
    await provider.close()
    assert (traits.startup_mean_ms, traits.startup_deadline_ms) == (5_000, 40_000)
    assert not traits.takes_images


def test_a_key_without_the_name_of_an_ssh_key_is_refused() -> None:
    """Every launch would be refused: the server says so when it starts, naming the setting."""
    with pytest.raises(ValueError, match=r"lambda_ssh_key[\s\S]*required with ALLPASS_LAMBDA_API_KEY"):
        settings(lambda_api_key="k")


# -- with our own bootstrap


async def test_our_bootstrap_runs_on_a_launched_machine(shared_lambda: EmulatorProcess) -> None:
    """What the adapter sends by default is our script, which goes for the agent at the address it was given."""
    options = LambdaOptions(KEY, "allpass", shared_lambda.url)
    provider = LambdaProvider(options, clock=Clock(), pace=NoWait())
    try:
        offer = min(await provider.offers(), key=lambda each: (each.price_per_hour, each.key))
        bootstrap = (("ALLPASS_URL", "http://127.0.0.1:9"), ("ALLPASS_AGENT_SHA256", "0" * 64))
        machine = await provider.create(replace(request_for(offer), bootstrap=bootstrap))
    finally:
        await provider.close()
    eventually(lambda: "no agent from http://127.0.0.1:9" in shared_lambda.log_of(machine.ref))
