"""Where a job has been, what each stay cost, and what it would all have cost without moving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.core.model.money import Money, total
from app.db.connection import Connection
from app.db.jobs.reads import JobRow
from app.db.reading.placements import StayRow, lost_by_run, paid_by_job, stays_of
from app.services.reading.save_by_moving import ServerlessPrices, all_serverless, repeated_ms, running_ms


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
    stays = (await stays_of(connection, [job.id]))[job.id]
    paid = await paid_by_job(connection, job.id)
    lost = await lost_by_run(connection, [job.id])
    ran_ms = sum(running_ms(stay, now_ms) for stay in stays)
    again_ms = sum(repeated_ms(stay, lost.get(stay.run_id), now_ms) for stay in stays)
    lifetime_ms = max(0, (now_ms if job.ended_ms is None else job.ended_ms) - job.submitted_ms)
    cost = total(paid.values())
    return JobTimeline(
        stays=_with_cost(stays, paid),
        waiting_ms=max(0, lifetime_ms - ran_ms),
        running_ms=ran_ms,
        repeated_ms=again_ms,
        cost=cost,
        all_serverless=await all_serverless(stays, ran_ms - again_ms, cost, ServerlessPrices(connection)),
    )


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
