"""Where a job has been, what each stay cost, and what it would all have cost without moving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.core.billing import serverless_equivalent
from app.core.model.money import Money, total
from app.core.model.node import BillingRule, BillingStart, Tier
from app.db.connection import Connection
from app.db.jobs.reads import JobRow
from app.db.reading.placements import Lost, StayRow, cheapest_serverless_price, lost_by_run, paid_by_job, stays_of

_BY_THE_SECOND = BillingRule(unit_ms=1000, starts=BillingStart.READY)  # how serverless bills, when no stay tells


@dataclass(frozen=True, slots=True)
class JobTimeline:
    """`stays` with their cost so far, oldest first. `cost` is all that the job pays, boots included. `repeated_ms`: of
    `running_ms`, what was lost with a machine or a move, and so had to be done again."""

    stays: tuple[tuple[StayRow, Money], ...]
    waiting_ms: int
    running_ms: int
    repeated_ms: int
    cost: Money
    all_serverless: Money


async def read_timeline(connection: Connection, job: JobRow, *, now_ms: int) -> JobTimeline:
    """The job's story in numbers. `all_serverless` is what one serverless stay would cost that takes each step once:
    what moves made the job do again is no saving of theirs."""
    stays = await stays_of(connection, job.id)
    paid = await paid_by_job(connection, job.id)
    lost = await lost_by_run(connection, job.id)
    running_ms = sum(_running_ms(stay, now_ms) for stay in stays)
    repeated_ms = sum(_repeated_ms(stay, lost.get(stay.run_id), now_ms) for stay in stays)
    lifetime_ms = max(0, (now_ms if job.ended_ms is None else job.ended_ms) - job.submitted_ms)
    cost = total(paid.values())
    return JobTimeline(
        stays=_with_cost(stays, paid),
        waiting_ms=max(0, lifetime_ms - running_ms),
        running_ms=running_ms,
        repeated_ms=repeated_ms,
        cost=cost,
        all_serverless=await _all_serverless(connection, stays, running_ms - repeated_ms, cost),
    )


def _running_ms(stay: StayRow, now_ms: int) -> int:
    if stay.running_ms is None:
        return 0
    return max(0, (now_ms if stay.to_ms is None else stay.to_ms) - stay.running_ms)


def _repeated_ms(stay: StayRow, lost: Lost | None, now_ms: int) -> int:
    """All of it where no steps were reported, else the part of the steps that was lost."""
    if lost is None:
        return 0
    taken = lost.step - (stay.resumed_from_step or 0)
    running_ms = _running_ms(stay, now_ms)
    return running_ms if taken <= 0 else running_ms * min(lost.steps, taken) // taken


def _with_cost(
    stays: Sequence[StayRow], paid: Mapping[tuple[str, str | None], Money]
) -> tuple[tuple[StayRow, Money], ...]:
    """The boot of a node rented for the job belongs to its first stay there."""
    told = []
    seen: set[str] = set()
    for stay in stays:
        cost = paid.get((stay.node_id, stay.run_id), Money(0))
        if stay.node_id not in seen:
            cost += paid.get((stay.node_id, None), Money(0))
            seen.add(stay.node_id)
        told.append((stay, cost))
    return tuple(told)


async def _all_serverless(connection: Connection, stays: Sequence[StayRow], running_ms: int, cost: Money) -> Money:
    """By the price and boot of its own serverless stay, else by what is offered now; its cost when nobody offers that.

    A job that never left serverless would have cost what it did.
    """
    if not stays or running_ms == 0:
        return Money(0)
    serverless = [stay for stay in stays if stay.tier is Tier.SERVERLESS]
    if len(serverless) == len(stays) == 1:
        return cost
    if serverless:
        first = serverless[0]
        boot_ms = 0 if first.running_ms is None else first.running_ms - first.from_ms
        return serverless_equivalent(first.billing, first.price_per_hour, boot_ms + running_ms)
    last = stays[-1]
    price = await cheapest_serverless_price(connection, last.gpu_type, last.gpu_count)
    return cost if price is None else serverless_equivalent(_BY_THE_SECOND, price, running_ms)
