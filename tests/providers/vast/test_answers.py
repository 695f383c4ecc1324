"""Answers that Vast.ai should not give, and that somebody in between may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import respx

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.errors import AuthFailed, InvalidRequest, OutcomeUnknown, ProviderError, Transient
from app.ports.failures import ProcessHostFailures
from providers.conformance.suite import request_for
from providers.vast.adapter import VastProvider
from providers.vast.options import VastOptions
from tests.providers.vast.clocks import StillClock
from tests.providers.vast_emulator import NoPace, idle

URL = "http://vast.test"
OFFER = Offer("vast", "5", Tier.MARKETPLACE, "T4", 1, 1, 1, 1, Money(140_000), 1, host="45")
ROW = {"id": 7, "label": "x", "actual_status": "running", "dph_total": 0.14, "machine_id": 45}


@pytest.fixture
async def provider() -> AsyncIterator[VastProvider]:
    options = VastOptions(api_key="k", base_url=URL)
    adapter = VastProvider(options, clock=StillClock(), pace=NoPace(), failures=ProcessHostFailures(), bootstrap=idle)
    yield adapter
    await adapter.close()


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (httpx.Response(200, text="<html>welcome</html>"), OutcomeUnknown),
        (httpx.Response(200, json={"success": True}), OutcomeUnknown),
        (httpx.Response(200, json=[1]), OutcomeUnknown),
        (httpx.Response(200, json={"success": False, "msg": "later"}), OutcomeUnknown),
        (httpx.Response(302, headers={"Location": "/login"}), OutcomeUnknown),
        (httpx.Response(503, json={"success": False}), OutcomeUnknown),
        (httpx.Response(413, text="too large"), InvalidRequest),
        (httpx.Response(403, text="forbidden"), AuthFailed),
    ],
    ids=["html", "no contract", "a list", "no code", "redirect", "503", "413", "403"],
)
async def test_an_odd_answer_to_create_is_no_answer(
    provider: VastProvider, answer: httpx.Response, meaning: type[ProviderError]
) -> None:
    """Whatever does not say clearly that nothing happened leaves the outcome unknown; and is asked once."""
    with respx.mock(base_url=URL) as wire:
        create = wire.put("/api/v0/asks/5/").mock(return_value=answer)
        with pytest.raises(meaning):
            await provider.create(request_for(OFFER))
        assert create.call_count == 1


@pytest.mark.parametrize(
    "said", [{}, {"instances": []}, {"instances": "none"}, {"success": False}], ids=["empty", "list", "text", "failed"]
)
async def test_an_odd_answer_about_a_contract_is_not_its_end(provider: VastProvider, said: dict[str, Any]) -> None:
    """Only a null says that there is none."""
    with respx.mock(base_url=URL) as wire:
        wire.get("/api/v0/instances/7/").mock(return_value=httpx.Response(200, json=said))
        with pytest.raises(Transient):
            await provider.get("7")
        wire.get("/api/v0/instances/7/").mock(return_value=httpx.Response(200, json={"instances": None}))
        assert await provider.get("7") is None


async def test_a_listing_that_cannot_be_read_is_not_an_empty_one(provider: VastProvider) -> None:
    """Neither a page in HTML, nor one that leads back to itself, nor a contract without its number counts."""
    row = ROW | {"label": request_for(OFFER).label}
    circle = {"instances": [row], "next_token": "again"}
    for answer in (
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"instances": None}),
        httpx.Response(200, json=circle),
        httpx.Response(200, json={"instances": [row | {"id": None}], "next_token": None}),
    ):
        with respx.mock(base_url=URL) as wire:
            wire.get("/api/v1/instances/").mock(return_value=answer)
            with pytest.raises(Transient):
                await provider.list_owned()


async def test_a_contract_on_two_pages_is_one(provider: VastProvider) -> None:
    """What moves from one page to the next while they are read is listed once."""
    row = ROW | {"label": request_for(OFFER).label}
    pages = [{"instances": [row], "next_token": "t"}, {"instances": [row], "next_token": None}]
    with respx.mock(base_url=URL) as wire:
        wire.get("/api/v1/instances/").mock(side_effect=[httpx.Response(200, json=page) for page in pages])
        assert [machine.ref for machine in await provider.list_owned()] == ["7"]


@pytest.mark.parametrize("said", [{"success": True}, {"result_url": "file:///etc/passwd"}, {"result_url": 5}])
async def test_a_log_without_an_address_is_a_failed_look(provider: VastProvider, said: dict[str, Any]) -> None:
    """Only web addresses are fetched."""
    with respx.mock(base_url=URL) as wire:
        wire.put("/api/v0/instances/request_logs/7/").mock(return_value=httpx.Response(200, json=said))
        with pytest.raises(Transient):
            await provider.logs("7", 5)


async def test_a_price_above_the_agreed_one_is_given_back(provider: VastProvider) -> None:
    """By however little: the contract is looked at once, and destroyed."""
    with respx.mock(base_url=URL) as wire:
        wire.put("/api/v0/asks/5/").mock(return_value=httpx.Response(200, json={"success": True, "new_contract": 7}))
        wire.get("/api/v0/instances/7/").mock(
            return_value=httpx.Response(200, json={"instances": ROW | {"dph_total": 0.140001}})
        )
        destroy = wire.delete("/api/v0/instances/7/").mock(return_value=httpx.Response(200, json={"success": True}))
        with pytest.raises(ProviderError, match="more than the agreed"):
            await provider.create(request_for(OFFER))
        assert destroy.call_count == 1


async def test_a_ref_is_one_segment_of_a_path(provider: VastProvider) -> None:
    """Whatever is in it; and a 404 that is not the company's own does not say that the contract is gone."""
    with respx.mock(base_url=URL) as wire:
        wire.route(method="GET").mock(return_value=httpx.Response(404, json={}))
        destroy = wire.route(method="DELETE").mock(return_value=httpx.Response(404, json={}))
        with pytest.raises(InvalidRequest):
            await provider.terminate("a/../b")
        assert destroy.calls.last.request.url.raw_path == b"/api/v0/instances/a%2F..%2Fb/"
