"""What a fine-tuning will take and cost, said before it starts: in one sentence, or not at all where nobody knows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from allpass.wire.plan import OwnLayout, PlanRequest
from app.core.memory.calibration import Calibrations
from app.core.memory.catalogue import known_name
from app.core.options import Quote
from app.core.policies.reasons import duration
from app.core.throughput import Throughput
from app.db.doors.tunings import FineTuning
from app.db.engine import Database
from app.db.learning.calibrations import newest_calibrations, step_rows
from app.db.offers.listed import recent_offers
from app.errors import AllpassError
from app.services.jobs.plan_job import JobPlan, plan_job

_MICROS = 1_000_000
log = logging.getLogger(__name__)


async def estimate_tuning(
    database: Database, tuning: FineTuning, training: Mapping[str, Any], *, offers_max_age_ms: int, now_ms: int
) -> str | None:
    """`training`: as the job's template states it. Whatever goes wrong here, the job goes on without a word of it."""
    name = known_name(tuning.base_model)
    if name is None:
        return None
    try:
        asked = _asked(name, training)
        async with database.transaction() as connection:
            offers = await recent_offers(
                connection, now_ms=now_ms, max_age_ms=offers_max_age_ms, project_id=tuning.project_id
            )
            steps = await step_rows(connection, tuning.project_id)
            known = Calibrations(await newest_calibrations(connection, tuning.project_id))
        planned = await asyncio.to_thread(plan_job, asked, offers, Throughput.of(steps), known, now_ms=now_ms)
    except (AllpassError, ValueError) as error:
        log.info("%s is not estimated: %s", tuning.id, error)
        return None
    return _sentence(planned, training)


def _asked(model: str, training: Mapping[str, Any]) -> PlanRequest:
    told = {
        "model": model,
        "method": training.get("method", "lora"),
        "batch": training["batch_size"],
        "sequence": training["sequence_length"],
        "steps": training["steps"],
        "rank": training.get("lora_rank"),
        "narrow_adapters": training.get("narrow_adapters"),
        "reference_pass": training.get("reference_pass"),
        "sharded": training.get("sharded"),
        "loss": training.get("loss"),
        "layout": OwnLayout(
            micro_batch=training.get("micro_batch"), checkpointing=training.get("checkpointing")
        ).model_dump(exclude_none=True),
    }
    return PlanRequest.model_validate({name: value for name, value in told.items() if value is not None})


def _sentence(planned: JobPlan, training: Mapping[str, Any]) -> str | None:
    """The cheapest way, and the quickest to begin with."""
    quotes = [
        (option.gpu_type, quote)
        for option in planned.options
        for quote in option.quotes
        if quote.cost is not None and quote.duration_ms is not None
    ]
    if not quotes:
        return None
    cheapest = min(quotes, key=lambda one: (_micros(one[1]), one[0]))
    serverless = [one for one in quotes if one[1].offer.tier == "serverless"]
    ways = [cheapest]
    if serverless:
        first = min(serverless, key=lambda one: (_micros(one[1]), one[0]))
        ways += [first] if first != cheapest else []
    told = ", or ".join(
        f"about {duration(quote.duration_ms or 0)} and {_dollars(quote)} {_where(kind, quote)}" for kind, quote in ways
    )
    return f"Estimate for {training['steps']} steps: {told}; the job moves by itself to what is cheaper"


def _micros(quote: Quote) -> int:
    return 0 if quote.cost is None else quote.cost.micros


def _dollars(quote: Quote) -> str:
    dollars = _micros(quote) / _MICROS
    return f"${dollars:.2f}" if dollars >= 0.01 else f"${dollars:.4f}"


def _where(kind: str, quote: Quote) -> str:
    return f"on one {kind} ({quote.offer.tier})"
