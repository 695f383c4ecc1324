"""What people are told of providers, and the check of credentials across processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI

from allpass.wire.providers import ProviderChecks, Providers
from app.api.context import ApiContext
from app.control.service import ControlService
from app.core.hosts import HostFailure
from app.core.model.node import NodeState, Tier
from app.db.nodes.host_failures import DatabaseHostFailures
from app.db.offers import provider_states as states
from app.db.offers.listed import replace_offers
from app.db.offers.provider_states import Failure
from app.errors import AuthFailed
from app.services.offers import check_providers
from tests.api.conftest import Tenant, make_tenant
from tests.conftest import ManualClock
from tests.control.fake_provider import FakeProvider, make_offer
from tests.seeds import seed_node

HOUR_MS = 3_600_000


async def _providers(tenant: Tenant) -> Providers:
    response = await tenant.http.get("/v1/providers")
    assert response.status_code == 200, response.text
    return Providers.model_validate(response.json())


async def test_only_configured_providers_are_told_of(context: ApiContext, tenant: Tenant) -> None:
    """One without credentials is absent, not broken; one that left the settings is absent again."""
    assert (await _providers(tenant)).providers == []
    async with context.database.transaction() as connection:
        await states.set_configured(connection, ["vast", "lambda"])
    assert [(one.name, one.state) for one in (await _providers(tenant)).providers] == [
        ("lambda", "unknown"),
        ("vast", "unknown"),
    ]
    async with context.database.transaction() as connection:
        await states.set_configured(connection, ["vast"])
    assert [one.name for one in (await _providers(tenant)).providers] == ["vast"]


async def test_prices_are_told_per_gpu_and_machines_of_the_own_project(context: ApiContext, tenant: Tenant) -> None:
    """The range of what is on offer now, by tier and type; other projects' machines are theirs."""
    now_ms = context.clock.now_ms()
    offers = [
        make_offer("vast", "1", Tier.MARKETPLACE, "0.70", startup_ms=1),
        make_offer("vast", "2", Tier.MARKETPLACE, "3.00", startup_ms=1, gpus=4),
        make_offer("vast", "3", Tier.MARKETPLACE, "0.90", startup_ms=1),
    ]
    async with context.database.transaction() as connection:
        await states.set_configured(connection, ["vast"])
        await replace_offers(connection, "vast", offers, now_ms=now_ms)
        await seed_node(connection, tenant.project_id, provider="vast")
        await seed_node(connection, tenant.project_id, provider="vast", state=NodeState.TERMINATED)
        await seed_node(connection, tenant.project_id, provider="other")
    (vast,) = (await _providers(tenant)).providers
    assert (vast.machines, vast.offers) == (1, 3)
    (price,) = vast.prices
    assert (price.tier, price.gpu_type, price.offers) == ("marketplace", "A100", 3)
    assert (price.lowest, price.highest) == (700_000, 900_000)


async def test_hosts_that_failed_are_told_until_they_get_another_chance(
    context: ApiContext, tenant: Tenant, clock: ManualClock
) -> None:
    """Of each provider its own, with how often they failed and until when nothing is rented there."""
    async with context.database.transaction() as connection:
        await states.set_configured(connection, ["vast", "lambda"])
    failures = DatabaseHostFailures(context.database, "vast")
    now_ms = clock.now_ms()
    for host, machine in (("45", "a"), ("45", "b"), ("7", "c")):
        await failures.note(HostFailure(host, machine, now_ms))
    other, vast = (await _providers(tenant)).providers
    assert other.barred_hosts == []
    told = [(one.host, one.failures, one.until.timestamp() * 1000 - now_ms) for one in vast.barred_hosts]
    assert told == [("45", 2, 12 * HOUR_MS), ("7", 1, 6 * HOUR_MS)]
    clock.advance(ms=7 * HOUR_MS)
    assert [one.host for one in (await _providers(tenant)).providers[1].barred_hosts] == ["45"]


async def test_the_state_is_the_worst_that_holds(context: ApiContext, tenant: Tenant, clock: ManualClock) -> None:
    """Failing, then paused, then refused; each is over when what ends it happens."""

    async def state() -> tuple[str, str | None]:
        (one,) = (await _providers(tenant)).providers
        return one.state, one.why

    async with context.database.transaction() as connection:
        await states.set_configured(connection, ["vast"])
        await states.set_success(connection, "vast", at_ms=clock.now_ms())
    assert await state() == ("ok", None)
    clock.advance(s=1)
    async with context.database.transaction() as connection:
        await states.set_failure(connection, "vast", Failure("list", "provider_transient", "502", clock.now_ms()))
    assert await state() == ("failing", "502")
    async with context.database.transaction() as connection:
        await states.pause(connection, "vast", "its limit is reached (8 GPUs)", now_ms=clock.now_ms())
        assert await states.refuse(connection, "vast", "401", now_ms=clock.now_ms())
        assert not await states.refuse(connection, "vast", "401", now_ms=clock.now_ms() + 5)
    assert (await state())[0] == "refused"
    async with context.database.transaction() as connection:
        assert await states.accept(connection, "vast")
        assert not await states.accept(connection, "vast")
    assert await state() == ("paused", "its limit is reached (8 GPUs); tried again later")
    clock.advance(s=121)
    async with context.database.transaction() as connection:
        await states.set_success(connection, "vast", at_ms=clock.now_ms())
    assert await state() == ("ok", None)


@asynccontextmanager
async def _control(context: ApiContext, *clouds: FakeProvider) -> AsyncIterator[ControlService]:
    """Another process, which holds the credentials; only its answering of checks runs."""
    service = ControlService(
        database=context.database,
        listener=context.listener,
        providers={cloud.name: cloud for cloud in clouds},
        settings=context.settings,
        clock=context.clock,
        ids=context.ids,
    )
    assert await service.context.leader.step()
    await service.checks.recheck_refused()
    answering = asyncio.create_task(service.checks.run(context.listener))
    try:
        yield service
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


@pytest.mark.usefixtures("listening")
async def test_a_check_is_answered_by_the_process_that_holds_the_credentials(api: FastAPI, context: ApiContext) -> None:
    """Each provider's own answer; a refused one is on record, and accepted again by the next check."""
    good, bad = FakeProvider(context.clock, name="good"), FakeProvider(context.clock, name="bad")
    bad.listing_error = AuthFailed("401 invalid key")
    async with make_tenant(api, context, ("admin", "read")) as admin, _control(context, good, bad):
        response = await admin.http.post("/v1/providers/check")
        assert response.status_code == 200, response.text
        answered = {one.name: one for one in ProviderChecks.model_validate(response.json()).checks}
        assert (answered["good"].code, answered["good"].offers) == (None, 2)
        assert (answered["bad"].code, answered["bad"].message) == ("provider_auth_failed", "401 invalid key")
        assert {one.name: one.state for one in (await _providers(admin)).providers}["bad"] == "refused"
        bad.listing_error = None
        await admin.http.post("/v1/providers/check")
        assert {one.name: one.state for one in (await _providers(admin)).providers}["bad"] == "ok"
    assert good.creates == bad.creates == 0


async def test_a_check_that_nobody_answers_says_who_should_have(
    api: FastAPI, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its deadline, with the setting that makes a process hold credentials."""
    asked = check_providers.check_providers

    async def hasty(*given: Any, **options: Any) -> Any:
        return await asked(*given, **options, wait_s=0.01)

    monkeypatch.setattr("app.api.providers.check_providers", hasty)
    async with context.database.transaction() as connection:
        await states.set_configured(connection, ["vast"])
    async with make_tenant(api, context, ("admin",)) as admin:
        (one,) = ProviderChecks.model_validate((await admin.http.post("/v1/providers/check")).json()).checks
    assert (one.name, one.code) == ("vast", "unavailable")
    assert "ALLPASS_ROLE" in one.message


async def test_a_check_without_any_provider_answers_at_once(api: FastAPI, context: ApiContext) -> None:
    """There is nobody to ask."""
    async with make_tenant(api, context, ("admin",)) as admin:
        assert (await admin.http.post("/v1/providers/check")).json() == {"checks": [], "reach": []}


async def test_the_way_is_looked_at_where_it_is_asked_for(api: FastAPI, context: ApiContext) -> None:
    """Nobody listens at the address of these settings: the check says so beside the credentials, for API and store."""
    context = replace(context, settings=context.settings.model_copy(update={"public_url": "http://127.0.0.1:9"}))
    api.state.context = context
    async with make_tenant(api, context, ("admin",)) as admin:
        answer = await admin.http.post("/v1/providers/check", params={"reach": "true"})
        told = ProviderChecks.model_validate(answer.json())
    assert {one.name: one.code for one in told.reach} == {"public URL": "public_url_refused", "store": "store_refused"}
    assert all(one.fix for one in told.reach)
