"""The rental companies: what is known of each, and whether it takes our credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from allpass.wire.providers import (
    BarredHost,
    ImageBuild,
    Provider,
    ProviderCheck,
    ProviderChecks,
    ProviderFailure,
    ProviderPrices,
    Providers,
    ReachFinding,
)
from app.api.audit import Write
from app.api.auth import Admin, Reader
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.images import build_view
from app.api.once import answer_once, first_answer
from app.api.price_lists import fresh_since, price_list_view
from app.api.requests import IdempotencyHeader
from app.api.views import instant, instant_or_none
from app.core import hosts
from app.core.model.finding import as_object
from app.db.nodes.host_failures import failures_by_provider
from app.db.offers.image_builds import builds_now
from app.db.offers.price_lists import dated_prices
from app.db.offers.provider_reads import PriceRange, open_machines, price_ranges
from app.db.offers.provider_states import ProviderState, provider_states_now, why_closed
from app.services.nodes.reach.look import look_from_here
from app.services.offers.check_providers import check_providers

router = APIRouter(prefix="/v1/providers", tags=["offers"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.get("", operation_id="list_providers", summary="List providers", responses=documented(401, 403, 422, 503))
async def get_providers(caller: Reader, context: ContextOf) -> Providers:
    """Those that the service has credentials for, as the control loop has last found them. No secret is told."""
    now_ms = context.clock.now_ms()
    async with context.database.transaction() as connection:
        states = await provider_states_now(connection)
        prices = await price_ranges(connection, seen_since_ms=now_ms - context.settings.offers_gone_after_ms)
        machines = await open_machines(connection, caller.project_id)
        failures = await failures_by_provider(connection, now_ms=now_ms)
        usual = context.settings.node_image
        builds = await builds_now(connection, project_id=caller.project_id, usual_image=usual)
        lists = await dated_prices(connection)
    views = [
        _view(
            state,
            [one for one in prices if one.provider == state.provider],
            machines[state.provider],
            hosts.barred_hosts(failures.get(state.provider, ()), now_ms),
            [build_view(one) for one in builds if one.provider == state.provider],
            now_ms,
        )
        for state in states
    ]
    for view in views:
        if view.name in lists:
            view.price_list = price_list_view(lists[view.name], fresh_since(context))
    return Providers(providers=views)


@router.post(
    "/check",
    operation_id="check_providers",
    summary="Check the providers' credentials",
    response_model=ProviderChecks,
    responses=documented(401, 403, 409, 413, 422, 503),
)
async def check(
    request: Request,
    caller: Admin,
    context: ContextOf,
    reach: Annotated[
        bool,
        Query(
            description="Also go to API and object store through their public addresses: up to two minutes",
            examples=[True],
        ),
    ] = False,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Lists what every provider has of ours and would rent; rents nothing. Takes up to 20 seconds.

    Where credentials had been refused and are taken now, renting goes on. What `reach` finds was seen from the service
    itself: a machine elsewhere may meet another firewall.
    """
    first = await first_answer(context, request)
    if first is not None:
        return first
    asked = check_providers(
        context.database, context.listener, context.clock, context.ids, poll_s=context.settings.poll_s
    )
    answers, met = await asyncio.gather(asked, _way(context, request) if reach else _nothing())
    checks = [
        ProviderCheck(
            name=row.provider,
            code=answer.error_code,
            message=answer.message,
            machines=answer.machines,
            offers=answer.offers,
            took_ms=max(0, (row.answered_ms or context.clock.now_ms()) - row.requested_ms),
        )
        for row, answer in answers
    ]

    async def act(write: Write) -> ProviderChecks:
        return ProviderChecks(checks=checks, reach=met)

    return await answer_once(context, request, act)


async def _nothing() -> list[ReachFinding]:
    return []


async def _way(context: ApiContext, request: Request) -> list[ReachFinding]:
    """One look at a time: each holds a connection open for half a minute, and moves some megabytes."""
    async with request.app.state.looking:
        found = await look_from_here(context.settings, context.objects, context.clock, hold=True)
    return [ReachFinding.model_validate(as_object(one)) for one in found]


def _view(
    state: ProviderState,
    prices: Sequence[PriceRange],
    machines: int,
    barred: Sequence[hosts.BarredHost],
    images: list[ImageBuild],
    now_ms: int,
) -> Provider:
    failure = state.last_failure
    return Provider(
        name=state.provider,
        state=state.condition(now_ms).value,
        why=why_closed(state, now_ms) or (failure.message if failure and state.is_failing() else None),
        last_success_at=instant_or_none(state.last_success_ms),
        last_failure=None
        if failure is None
        else ProviderFailure(call=failure.call, code=failure.code, message=failure.message, at=instant(failure.at_ms)),
        quota_errors=state.quota_errors,
        refused_at=instant_or_none(state.refused_ms),
        paused_until=instant_or_none(state.paused_until_ms),
        machines=machines,
        offers=sum(one.offers for one in prices),
        prices=[
            ProviderPrices(
                tier=one.tier.value,
                gpu_type=one.gpu_type,
                offers=one.offers,
                lowest=one.lowest_micros,
                highest=one.highest_micros,
            )
            for one in prices
        ],
        images=images,
        barred_hosts=[BarredHost(host=one.host, failures=one.failures, until=instant(one.until_ms)) for one in barred],
    )
