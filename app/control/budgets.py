"""Hold jobs to the budgets of their project, their API key and their provider.

What is decided on shows what budgets leave for each job (`observe.py`), what is rented is checked where it is written
(`renting.py`), and here, when the meter was read, what runs is held: jobs save and pause, what is idle ends, and all
goes on by itself when the period is over or more is allowed. Jobs without a place are not paused: they wait, and
decisions say for what.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.control.context import ControlContext
from app.control.each import each
from app.core.budgets import BudgetStanding, that_holds, within_budgets
from app.core.model.health import Chore
from app.core.model.job import PLACEABLE_JOB_STATES, TERMINAL_JOB_STATES, JobState, PauseReason
from app.core.model.snapshot import Snapshot
from app.db.checkpoints.unsaved import at_risk
from app.db.connection import Connection
from app.db.decisions.enactment import held_gpus
from app.db.jobs.steering import change_job, lock_standing
from app.db.lock_order import lock_scope
from app.db.money.budget_holds import (
    BUDGET_NEAR,
    HeldJob,
    HoldingJob,
    held_jobs,
    machines_without_jobs,
    not_told,
    placed_jobs,
)
from app.db.money.budgets import budgets_now, unfinished_jobs_of
from app.db.transitions import Event, add_job_event
from app.db.unreadable import RowReading
from app.services.jobs.hold_job import hold_job
from app.services.jobs.let_go_on import let_go_on
from app.services.nodes.release_node import release_node

GOES_ON = "no budget that it counts against is used up any more"
GOES_ELSEWHERE = "has left the provider whose budget is used up: goes on at another one, or when there is more"


async def see_budgets(connection: Connection, reading: RowReading, seen: Snapshot, *, now_ms: int) -> Snapshot:
    """The snapshot with what budgets leave for each job."""
    standings = await budgets_now(connection, reading, now_ms=now_ms)
    if not standings:
        return seen
    keys = {one.budget.key_id for one in standings if one.budget.key_id is not None}
    return within_budgets(seen, standings, await unfinished_jobs_of(connection, keys))


async def hold_to_budgets(context: ControlContext) -> int:
    """Returns how many jobs were held, told or let go on. Each has a transaction of its own."""
    now_ms, reading = context.clock.now_ms(), RowReading()
    async with context.database.transaction() as connection:
        standings = await budgets_now(connection, reading, now_ms=now_ms)
        used_up = [one for one in standings if one.used_up]
        near = [one for one in standings if one.near]
        placed = await placed_jobs(connection) if used_up or near else []
        held = await held_jobs(connection)
        warned = await not_told(connection, _near_jobs(placed, near))
        idle = await machines_without_jobs(connection) if used_up else []
    for (table, row_id), error in reading.unread.items():
        context.health.failed(Chore.BUDGETS, f"{table} {row_id}", error)
    ended = {
        one.node_id: holding
        for one in idle
        if (holding := that_holds(used_up, one.project_id, one.key_id, [one.provider])) is not None
    }
    await _hold(context, placed, used_up, now_ms=now_ms)
    await _warn(context, {(one[0], one[1]) for one in warned}, near, now_ms=now_ms)
    await _end(context, ended, now_ms=now_ms)
    await _let_go_on(context, held, used_up, now_ms=now_ms)
    return len(placed) + len(held)


def _near_jobs(placed: Sequence[HoldingJob], near: Sequence[BudgetStanding]) -> set[tuple[str, str, int, int]]:
    """Who is to be warned of what, as `not_told` asks for it: once in each period, and anew after a change."""
    return {
        (one.job_id, at.budget.budget_id, at.budget.amount.micros, at.begins_ms)
        for one in placed
        for at in near
        if not one.asked and at.budget.covers(one.project_id, one.key_id, one.provider)
    }


async def _hold(
    context: ControlContext, placed: Sequence[HoldingJob], used_up: Sequence[BudgetStanding], *, now_ms: int
) -> None:
    """A job is asked once, by the budget that lasts longest."""
    why: dict[str, str] = {}
    for one in placed:
        holding = that_holds(used_up, one.project_id, one.key_id, [one.provider])
        if holding is not None and not one.asked:
            why.setdefault(one.job_id, holding.why_held)

    async def hold(connection: Connection, job_id: str) -> None:
        job = await lock_standing(connection, job_id)
        if job is not None and job.state not in TERMINAL_JOB_STATES | PLACEABLE_JOB_STATES:
            await hold_job(connection, context.ids, job, PauseReason.BUDGET, now_ms=now_ms, why=why[job_id])

    await each(context, Chore.BUDGETS, sorted(why), hold)


async def _warn(
    context: ControlContext, wanted: set[tuple[str, str]], near: Sequence[BudgetStanding], *, now_ms: int
) -> None:
    """While more can still be allowed; with what is lost, of a job that does not save."""
    by_id = {one.budget.budget_id: one for one in near}

    async def warn(connection: Connection, pair: tuple[str, str]) -> None:
        job, at = await lock_standing(connection, pair[0]), by_id[pair[1]]
        if job is None or job.state in TERMINAL_JOB_STATES or job.pause_reason is not None:
            return
        loss = (await at_risk(connection, job.job_id, now_ms=now_ms)).loss
        what = "saves and pauses" if loss is None else f"pauses; {loss}"
        told = f"{at.budget.name} is nearly used up, and when it is, this job {what}: {at.goes_on}"
        data = {"budget_id": at.budget.budget_id, "amount": at.budget.amount.micros, "begins_ms": at.begins_ms}
        await add_job_event(connection, job.job_id, Event(BUDGET_NEAR, told, data), now_ms=now_ms)

    await each(context, Chore.BUDGETS, sorted(wanted), warn, named=" and ".join)


async def _end(context: ControlContext, ended: dict[str, BudgetStanding], *, now_ms: int) -> None:
    async def end(connection: Connection, node_id: str) -> None:
        await lock_scope(connection, {node_id})
        if not await held_gpus(connection, node_id):
            why = f"{ended[node_id].budget.name} is used up, and it holds nothing"
            await release_node(connection, context.ids, node_id, why, now_ms=now_ms)

    await each(context, Chore.BUDGETS, sorted(ended), end)


async def _let_go_on(
    context: ControlContext, held: Sequence[HeldJob], used_up: Sequence[BudgetStanding], *, now_ms: int
) -> None:
    """A job that is still held is told by which budget: of several, that may be another one by now. Nothing is asked of
    those that know."""
    why: dict[str, str] = {}
    free: dict[str, str] = {}
    for one in held:
        holding = that_holds(used_up, one.project_id, one.key_id, one.providers)
        if holding is None:
            left = one.paused and any(at.budget.covers_job(one.project_id, one.key_id) for at in used_up)
            free[one.job_id] = GOES_ELSEWHERE if left else GOES_ON
        elif one.paused and one.told != holding.why_held:
            why[one.job_id] = holding.why_held

    async def go_on(connection: Connection, job_id: str) -> None:
        await let_go_on(connection, job_id, PauseReason.BUDGET, free[job_id], now_ms=now_ms)

    async def tell(connection: Connection, job_id: str) -> None:
        await _tell(connection, job_id, why[job_id])

    await each(context, Chore.BUDGETS, free, go_on)
    await each(context, Chore.BUDGETS, why, tell)


async def _tell(connection: Connection, job_id: str, why: str) -> None:
    job = await lock_standing(connection, job_id)
    if job is not None and job.state is JobState.PAUSED and job.pause_reason is PauseReason.BUDGET:
        await change_job(connection, job_id, {"wait_reason": why})
