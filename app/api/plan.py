"""What a job would need, and what can be rented for it: asked before it is submitted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from allpass.wire.plan import Plan, PlanOffer, PlanOption, PlanRemedy, PlanRequest
from app.api.audit import Write
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.once import answer_once, first_answer
from app.api.own_path import OwnPath
from app.api.planned_machines import layout_of, over_machines, range_of
from app.api.price_lists import day_or_none, fresh_since
from app.api.requests import IdempotencyHeader
from app.core.dated_prices import DatedPrices, is_old
from app.core.memory.calibration import Calibrations
from app.core.memory.exact import can_be_run, is_near
from app.core.options import Option, Quote
from app.core.pools import SharesNow, parts_of, places_for, spot_price
from app.core.spot_share import at_share
from app.core.throughput import Throughput
from app.db.learning.calibrations import newest_calibrations, step_rows
from app.db.offers.price_lists import dated_prices
from app.db.pools.spot_shares import shares_now
from app.db.reading.plannable import MOST_APART, MOST_OF_A_KIND, plannable_offers
from app.services.jobs.plan_job import PROFILE, JobPlan, Mend, plan_job
from app.services.jobs.see_sites import see_sites

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=OwnPath)
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.post(
    "/jobs/plan",
    operation_id="plan_job",
    summary="Ask what a job would need",
    response_model=Plan,
    responses=documented(401, 403, 409, 413, 422, 503),
)
async def ask_plan(
    body: PlanRequest, request: Request, caller: Reader, context: ContextOf, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Predicted memory, whether it fits, the layout, time and cost, for every kind of GPU that can be rented now.

    Over several machines too: where `nodes` asks for them, and where nothing fits on one. Nothing is submitted or
    rented. Offers of providers that refused this service's account a moment ago are left out, as are machines that
    the caller's project may not use.
    """
    first = await first_answer(context, request)
    if first is not None:
        return first
    now_ms = context.clock.now_ms()
    async with context.database.transaction() as connection:
        max_age_ms = context.settings.offers_gone_after_ms
        most = MOST_OF_A_KIND if body.most_per_switch is body.most_per_rack is None else MOST_APART
        listed = await plannable_offers(
            connection, caller.project_id, now_ms=now_ms, max_age_ms=max_age_ms, most_of_a_kind=most
        )
        sites = await see_sites(connection, listed, body.network_gbits, context.settings.gang_switches)
        steps = await step_rows(connection, caller.project_id)
        known = Calibrations(await newest_calibrations(connection, caller.project_id))
        lists, shares = await dated_prices(connection), await shares_now(connection)
    async with request.app.state.planning:
        ours = places_for(listed.offers, shares, spot=bool(body.spot))
        taught = Throughput.of(steps), known
        planned = await asyncio.to_thread(plan_job, body, ours, *taught, sites=sites, now_ms=now_ms)

    async def act(write: Write) -> Plan:
        return _dated(_view(body, planned, {} if body.spot else shares), lists, fresh_since(context))

    return await answer_once(context, request, act)


def _view(asked: PlanRequest, planned: JobPlan, shares: SharesNow) -> Plan:
    return Plan(
        model=planned.model,
        parameters=planned.parameters,
        batch=asked.batch,
        sequence=asked.sequence,
        method=asked.method,
        profile=PROFILE,
        steps=planned.steps,
        one_gpu_bytes=planned.one_gpu_bytes,
        host_bytes=planned.host_bytes,
        chosen=planned.chosen,
        reason=planned.reason,
        options=[_option(each, shares) for each in planned.options],
        config=dict(planned.config),
        exact=asked.exact,
        remedies=[_remedy(each) for each in planned.mends],
        nodes=asked.nodes,
        **over_machines(planned.machines),
    )


def _dated(plan: Plan, lists: Mapping[str, DatedPrices], since: str) -> Plan:
    """Which of the prices are from a list, and how old they are."""
    for option in plan.options:
        for offer in option.offers:
            if offer.provider in lists:
                as_of = lists[offer.provider].oldest(option.gpu_type)
                offer.price_as_of, offer.price_is_old = day_or_none(as_of), is_old(as_of, since)
    for one in plan.machines:
        if one.provider in lists and one.price_per_hour is not None:
            as_of = lists[one.provider].oldest(one.gpu_type)
            one.price_as_of, one.price_is_old = day_or_none(as_of), is_old(as_of, since)
    return plan


def _option(option: Option, shares: SharesNow) -> PlanOption:
    found = option.estimated
    return PlanOption.model_validate(
        {
            "gpu_type": option.gpu_type,
            "gpu_count": option.gpu_count,
            "gpu_memory_bytes": option.gpu_memory_bytes,
            "verdict": option.verdict,
            "layout": layout_of(option.training),
            "peak_in": found.peak.phase,
            "calibrated_by": 0 if option.calibration is None else option.calibration.samples,
            **_decided(option),
            "allocated": range_of(found.allocated),
            "reserved": range_of(found.reserved),
            "process": range_of(found.process),
            "step_ms": None if option.step is None else option.step.ms,
            "step_source": None if option.step is None else option.step.source,
            "offers": [_offer(quote, shares) for quote in option.quotes],
        }
    )


def _decided(option: Option) -> dict[str, Any]:
    decided = option.decided
    if decided is None:
        return {"near": can_be_run(option.training) and is_near(option.estimated, option.gpu_memory_bytes)}
    tables = None if decided.tables is None else range_of(decided.tables)
    return {"exact": True, "tables": tables, "raised": decided.raised}


def _offer(quote: Quote, shares: SharesNow) -> PlanOffer:
    offer, cost = quote.offer, None if quote.cost is None else quote.cost.micros
    parts = parts_of(shares, offer)
    return PlanOffer(
        tier=offer.tier.value,
        provider=offer.provider,
        offer_id=offer.offer_id,
        price_per_hour=offer.price_per_hour.micros,
        spot_price_per_hour=spot_price(shares, offer),
        interruptible=offer.interruptible,
        startup_ms=offer.startup_ms,
        duration_ms=quote.duration_ms,
        cost=cost,
        likely_cost=None if quote.likely_cost is None else quote.likely_cost.micros,
        spot_cost=None if cost is None or parts is None else at_share(cost, parts),
        in_time=quote.in_time,
        steps_in_time=quote.steps_in_time,
    )


def _remedy(mend: Mend) -> PlanRemedy:
    return PlanRemedy(
        changes=list(mend.changes),
        message=mend.message,
        gpu_type=mend.option.gpu_type,
        gpu_count=mend.option.gpu_count,
        price_per_hour=mend.option.best.offer.price_per_hour.micros,
    )
