"""The adapter turns whatever comes over the wire, or does not, into the right error, and never tries twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import respx

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    OfferGone,
    OutcomeUnknown,
    PriceMoved,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
)
from app.ports.provider import MachineRequest, MachineStatus
from providers.conformance.suite import new_label, request_for
from providers.local.adapter import LocalProvider
from providers.local.market import RULES
from tests.conftest import ManualClock
from tests.providers.cloud_process import CloudProcess

URL = "http://cloud.test"
MACHINE: dict[str, Any] = {
    "id": "m-1",
    "label": "node_1",
    "class": "marketplace",
    "offer_id": "o",
    "status": "running",
    "detail": "",
    "price_micros_per_hour": 1_080_000,
    "created_ms": 1,
    "ready_ms": 2,
    "ended_ms": None,
    "billed_from_ms": 2,
    "billed_to_ms": None,
    "billed_micros": 300,
}
OFFER = Offer("local", "o", Tier.MARKETPLACE, "A100", 1, 40 * 2**30, 8, 2**36, Money.usd("1.08"), 36_040)


def traits_body(speed: float) -> dict[str, Any]:
    classes = [
        {
            "class": name,
            "billing_unit_ms": rules.billing_unit_ms,
            "billed_from": "request" if rules.billed_from_request else "ready",
            "startup_mean_ms": round(rules.startup_mean_ms * speed),
            "startup_deadline_ms": 30_000,
            "create_grace_ms": 5_000,
            "dies_with_run": rules.dies_with_run,
            "preemptible": rules.preemptible,
        }
        for name, rules in RULES.items()
    ]
    return {"speed": speed, "classes": classes}


@pytest.fixture
async def provider(clock: ManualClock) -> AsyncIterator[LocalProvider]:
    provider = LocalProvider(URL, "key", timeout_s=1, clock=clock)
    yield provider
    await provider.close()


@pytest.fixture
def wire() -> AsyncIterator[respx.MockRouter]:
    with respx.mock(base_url=URL, assert_all_called=False) as router:
        yield router


def refusal(status: int, code: str, **more: Any) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "because", **more}})


SURE_REFUSALS = [
    (refusal(401, "unauthenticated"), AuthFailed),
    (refusal(403, "account_inactive"), AuthFailed),
    (refusal(402, "quota_exceeded"), QuotaExceeded),
    (refusal(409, "offer_gone"), OfferGone),
    (refusal(409, "price_moved"), PriceMoved),
    (refusal(409, "no_capacity"), NoCapacity),
    (refusal(409, "something_new"), InvalidRequest),
    (refusal(422, "invalid_request"), InvalidRequest),
    (httpx.Response(400, text="<html>"), InvalidRequest),
    (httpx.Response(404, text="<html>"), InvalidRequest),
    (httpx.Response(422, json=["odd"]), InvalidRequest),
    (httpx.Response(422, json={"error": "odd"}), InvalidRequest),
]
NO_CLEAR_ANSWER = [
    httpx.Response(500),
    refusal(502, "bad_gateway"),
    httpx.Response(503, headers={"Retry-After": "1"}),
    httpx.Response(504, text="<html>"),
    httpx.Response(302, headers={"Location": "/elsewhere"}),
]
UNREADABLE = [
    httpx.Response(200, text="not json"),
    httpx.Response(200, json=[]),
    httpx.Response(200, json={"id": "m-1"}),
    httpx.Response(200, json=MACHINE | {"status": "melted"}),
    httpx.Response(200, json=MACHINE | {"class": "cloudy"}),
]
NEVER_LEFT = [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow"), httpx.PoolTimeout("busy")]
BROKE_ON_THE_WAY = [
    httpx.ReadTimeout("late"),
    httpx.ReadError("reset"),
    httpx.WriteError("reset"),
    httpx.WriteTimeout("slow"),
    httpx.RemoteProtocolError("disconnected"),
    httpx.DecodingError("gzip"),
]


@pytest.mark.parametrize(("response", "error"), SURE_REFUSALS)
async def test_a_refused_create_is_told_as_what_it_is(
    provider: LocalProvider, wire: respx.MockRouter, response: httpx.Response, error: type[ProviderError]
) -> None:
    """A 4xx answer is a clear no: each has its own error, and the call is not repeated."""
    route = wire.post("/v1/machines").mock(return_value=response)
    with pytest.raises(ProviderError) as raised:
        await provider.create(request_for(OFFER))
    assert type(raised.value) is error
    assert route.call_count == 1


@pytest.mark.parametrize("answer", [*NO_CLEAR_ANSWER, *UNREADABLE, *BROKE_ON_THE_WAY], ids=repr)
async def test_a_create_without_a_clear_answer_is_unknown(
    provider: LocalProvider, wire: respx.MockRouter, answer: httpx.Response | Exception
) -> None:
    """Whatever happens after a create call has left, short of a clear answer, is OutcomeUnknown; no second call."""
    route = wire.post("/v1/machines")
    route.side_effect = [answer]
    with pytest.raises(OutcomeUnknown):
        await provider.create(request_for(OFFER))
    assert route.call_count == 1


@pytest.mark.parametrize("failure", NEVER_LEFT, ids=repr)
async def test_a_create_that_never_left_is_transient(
    provider: LocalProvider, wire: respx.MockRouter, failure: Exception
) -> None:
    """When no connection came about, nothing can have happened: the caller may try again without looking."""
    wire.post("/v1/machines").mock(side_effect=failure)
    with pytest.raises(Transient) as raised:
        await provider.create(request_for(OFFER))
    assert raised.value.__cause__ is failure


CALLS: dict[str, Callable[[LocalProvider], Any]] = {
    "get": lambda provider: provider.get("m-1"),
    "find": lambda provider: provider.find("label"),
    "list_owned": lambda provider: provider.list_owned(),
    "terminate": lambda provider: provider.terminate("m-1"),
    "logs": lambda provider: provider.logs("m-1", 5),
    "offers": lambda provider: provider.offers(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", [*NO_CLEAR_ANSWER, *NEVER_LEFT, *BROKE_ON_THE_WAY], ids=repr)
async def test_any_other_call_without_an_answer_is_transient(
    provider: LocalProvider, wire: respx.MockRouter, call: str, answer: httpx.Response | Exception
) -> None:
    """All calls but create may be repeated, so their failures are Transient; the adapter leaves that to its caller."""
    route = wire.route()
    route.side_effect = [answer]
    with pytest.raises(Transient):
        await CALLS[call](provider)
    assert route.call_count == 1


@pytest.mark.parametrize("call", sorted(set(CALLS) - {"terminate", "logs"}))
@pytest.mark.parametrize("answer", UNREADABLE, ids=repr)
async def test_an_answer_that_cannot_be_read_is_not_taken_for_nothing(
    provider: LocalProvider, wire: respx.MockRouter, call: str, answer: httpx.Response
) -> None:
    """A listing or machine that cannot be read raises Transient: it must never look like 'no machines'."""
    wire.route().mock(return_value=answer)
    with pytest.raises(Transient):
        await CALLS[call](provider)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", [httpx.Response(404, text="nginx"), refusal(404, "path_not_found")], ids=repr)
async def test_a_strangers_404_is_not_taken_for_a_missing_machine(
    provider: LocalProvider, wire: respx.MockRouter, call: str, answer: httpx.Response
) -> None:
    """Only the cloud's own word says that a machine is gone; else a wrong address would end machines on paper."""
    wire.route().mock(return_value=answer)
    with pytest.raises(InvalidRequest):
        await CALLS[call](provider)


@pytest.mark.parametrize(
    ("response", "expected_ms"),
    [
        (refusal(429, "rate_limited", retry_after_ms=250), 250),
        (httpx.Response(429, headers={"Retry-After": "12"}, text="slow down"), 12_000),
        (httpx.Response(429, headers={"Retry-After": "soon"}), 1_000),
        (httpx.Response(429), 1_000),
    ],
)
async def test_rate_limits_carry_the_best_known_wait(
    provider: LocalProvider, wire: respx.MockRouter, response: httpx.Response, expected_ms: int
) -> None:
    """The cloud's precise wait wins over the header, the header over a default."""
    wire.route().mock(return_value=response)
    for call in (provider.create(request_for(OFFER)), provider.list_owned()):
        with pytest.raises(RateLimited) as raised:
            await call
        assert raised.value.retry_after_ms == expected_ms


async def test_a_create_call_carries_all_that_was_agreed(provider: LocalProvider, wire: respx.MockRouter) -> None:
    """Label, offer, highest price, image, bootstrap and lifetime travel inside the call; the key in its header."""
    route = wire.post("/v1/machines").respond(201, json=MACHINE)
    request = MachineRequest("node_1", OFFER, Money.usd("1.5"), "image:1", (("A", "1"), ("B", "2")), lifetime_ms=9)
    machine = await provider.create(request)
    sent = route.calls.last.request
    assert sent.headers["Authorization"] == "Bearer key"
    assert httpx.Response(200, content=sent.content).json() == {
        "label": "node_1",
        "offer_id": "o",
        "max_price_micros_per_hour": 1_500_000,
        "image": "image:1",
        "env": {"A": "1", "B": "2"},
        "lifetime_ms": 9,
    }
    assert (machine.ref, machine.tier, machine.status) == ("m-1", Tier.MARKETPLACE, MachineStatus.RUNNING)
    assert (machine.price_per_hour, machine.billed) == (Money.usd("1.08"), Money(300))
    assert (machine.billed_from_ms, machine.billed_to_ms) == (2, None)


async def test_an_offer_of_another_company_is_never_sent(provider: LocalProvider, wire: respx.MockRouter) -> None:
    """An offer that is not ours is refused before anything leaves."""
    request = request_for(Offer("vast", "o", Tier.MARKETPLACE, "A100", 1, 1, 1, 1, Money(1), 1))
    with pytest.raises(InvalidRequest, match="vast/o"):
        await provider.create(request)
    assert not wire.calls


async def test_a_ref_cannot_name_another_path(provider: LocalProvider, wire: respx.MockRouter) -> None:
    """A ref is one piece of the path, whatever it holds."""
    route = wire.route().mock(return_value=refusal(404, "machine_not_found"))
    await provider.terminate("../../admin/faults?x=1")
    assert route.calls.last.request.url.raw_path == b"/v1/machines/..%2F..%2Fadmin%2Ffaults%3Fx%3D1"


async def test_only_labels_of_ours_are_listed(provider: LocalProvider, wire: respx.MockRouter) -> None:
    """A machine without a label, or with one that is no node id, belongs to somebody else."""
    ours = new_label()
    labels = [None, "", "node_1", "job_" + ours.removeprefix("node_"), ours]
    machines = [MACHINE | {"id": str(index), "label": label} for index, label in enumerate(labels)]
    wire.get("/v1/machines").respond(json={"machines": machines})
    assert [machine.label for machine in await provider.list_owned()] == [ours]


async def test_traits_are_cautious_until_the_cloud_has_told_its_speed(
    provider: LocalProvider, wire: respx.MockRouter, clock: ManualClock
) -> None:
    """Before the first look traits are those of real time; then the cloud's, asked again after a minute at most."""
    assert {each.tier: each.startup_mean_ms for each in provider.traits()} == {
        Tier(name): rules.startup_mean_ms for name, rules in RULES.items()
    }
    wire.get("/v1/offers").respond(json={"offers": []})
    asked = wire.get("/v1/traits").respond(json=traits_body(0.1))
    await provider.offers()
    assert {each.startup_mean_ms for each in provider.traits()} == {388, 3_604, 25_559}
    clock.advance(s=59)
    await provider.offers()
    assert asked.call_count == 1
    asked.respond(json=traits_body(0))
    clock.advance(s=1)
    await provider.offers()
    assert asked.call_count == 2
    assert {each.startup_mean_ms for each in provider.traits()} == {0}


async def test_the_cautious_traits_are_those_of_a_cloud_at_full_length(
    start_cloud: Callable[..., CloudProcess],
) -> None:
    """What the adapter assumes of an unknown cloud is what a cloud at speed 1 says of itself."""
    provider = start_cloud(speed=1.0).provider()
    assumed = provider.traits()
    await provider.offers()
    assert provider.traits() == assumed
    await provider.close()
