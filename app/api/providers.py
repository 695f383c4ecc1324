"""The rental companies: what is known of each, and whether it takes our credentials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from allpass.wire.providers import (
    BarredHost,
    Provider,
    ProviderCheck,
    ProviderChecks,
    ProviderFailure,
    ProviderPrices,
    Providers,
)
from app.api.audit import Write
from app.api.auth import Admin, Reader
from app.api.errors import documented
from app.api.once import answer_once, first_answer
from app.api.parts import Parts, parts_of
from app.api.requests import IdempotencyHeader
from app.api.views import instant, instant_or_none
from app.core import hosts
from app.db.host_failures import failures_by_provider
from app.db.provider_reads import PriceRange, open_machines, price_ranges
from app.db.provider_states import ProviderState, provider_states_now, why_closed
from app.services.check_providers import check_providers

router = APIRouter(prefix="/v1/providers", tags=["offers"])
PartsOf = Annotated[Parts, Depends(parts_of)]


@router.get("", operation_id="list_providers", summary="List providers", responses=documented(401, 403, 422, 503))
async def get_providers(caller: Reader, parts: PartsOf) -> Providers:
    """Those that the service has credentials for, as the control loop has last found them. No secret is told."""
    now_ms = parts.clock.now_ms()
    async with parts.database.transaction() as connection:
        states = await provider_states_now(connection)
        prices = await price_ranges(connection, seen_since_ms=now_ms - parts.settings.offers_gone_after_ms)
        machines = await open_machines(connection, caller.project_id)
        failures = await failures_by_provider(connection, now_ms=now_ms)
    views = [
        _view(
            state,
            [one for one in prices if one.provider == state.provider],
            machines[state.provider],
            hosts.barred_hosts(failures.get(state.provider, ()), now_ms),
            now_ms,
        )
        for state in states
    ]
    return Providers(providers=views)


@router.post(
    "/check",
    operation_id="check_providers",
    summary="Check the providers' credentials",
    response_model=ProviderChecks,
    responses=documented(401, 403, 409, 413, 422, 503),
)
async def check(request: Request, caller: Admin, parts: PartsOf, idempotency_key: IdempotencyHeader = None) -> Response:
    """Lists what every provider has of ours and would rent; rents nothing. Takes up to 20 seconds.

    Where credentials had been refused and are taken now, renting goes on.
    """
    first = await first_answer(parts, request)
    if first is not None:
        return first
    answers = await check_providers(
        parts.database, parts.listener, parts.clock, parts.ids, poll_s=parts.settings.poll_s
    )
    checks = [
        ProviderCheck(
            name=row.provider,
            code=answer.error_code,
            message=answer.message,
            machines=answer.machines,
            offers=answer.offers,
            took_ms=max(0, (row.answered_ms or parts.clock.now_ms()) - row.requested_ms),
        )
        for row, answer in answers
    ]

    async def act(write: Write) -> ProviderChecks:
        return ProviderChecks(checks=checks)

    return await answer_once(parts, request, act)


def _view(
    state: ProviderState, prices: Sequence[PriceRange], machines: int, barred: Sequence[hosts.BarredHost], now_ms: int
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
        barred_hosts=[BarredHost(host=one.host, failures=one.failures, until=instant(one.until_ms)) for one in barred],
    )
