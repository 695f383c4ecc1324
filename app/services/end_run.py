"""End a run, whoever found out that it is over: its agent, the reconciler, a cancellation, a cap."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.core.model.node import Tier
from app.core.model.run import RunEnd, RunState
from app.core.steering import Standing, settle
from app.db.checkpoints import abort_open_checkpoints
from app.db.handles import Connection
from app.db.job_endings import give_back_job
from app.db.run_history import remember_run_time
from app.db.runs import RunRow, close_allocations, lock_run
from app.db.steering import standings_of
from app.db.transitions import Event, bump_desired, move_job, move_run
from app.ports.clock import IdSource
from app.services.release_node import release_node

_PLANNED_MOVES = frozenset({RunEnd.DEMOTED, RunEnd.MIGRATED, RunEnd.PREEMPTED})


async def end_run(
    connection: Connection,
    ids: IdSource,
    run_id: str,
    outcome: Outcome,
    *,
    now_ms: int,
    avoid_offer: str | None = None,
    not_before_ms: int = 0,
) -> bool:
    """Close the run, hand its jobs on as `outcome` says, and let go of a node that dies with its run.

    False, with nothing written, when the run is already over: the first to find out decides. The jobs' epoch is
    raised, so that nothing this run still sends can count. A job that would go on is paused instead when that was
    asked of it, and cancelled when its time is used up. `avoid_offer` keeps the next placement from the same offer;
    `not_before_ms` is a back-off.
    """
    run = await lock_run(connection, run_id)
    if run is None or run.state is RunState.ENDED:
        return False
    jobs = await standings_of(connection, run.job_ids)
    settled = {job_id: settle(outcome, jobs[job_id], now_ms) for job_id in run.job_ids}
    ends = {one.run_end for one in settled.values()}
    run_end = ends.pop() if len(ends) == 1 else outcome.run_end
    event = Event(f"run_{run_end}", outcome.message, {"tier": run.tier})
    await move_run(
        connection,
        run_id,
        RunState.ENDED,
        event,
        now_ms=now_ms,
        end_reason=run_end,
        end_message=outcome.message,
        ended_ms=now_ms,
    )
    await close_allocations(connection, run_id, now_ms=now_ms)
    await abort_open_checkpoints(connection, run_id)
    for job_id in run.job_ids:
        await give_back_job(
            connection,
            job_id,
            serverless_ms=_ran_ms(run, now_ms) if run.tier is Tier.SERVERLESS else 0,
            ran_ms=_ran_ms(run, now_ms),
            fault=outcome.fault,
            planned_move=settled[job_id].run_end in _PLANNED_MOVES,
            avoid_offer=avoid_offer,
            not_before_ms=not_before_ms,
        )
        await _move_job_on(connection, jobs[job_id], settled[job_id], now_ms=now_ms)
        if settled[job_id].job_state is JobState.SUCCEEDED:
            await remember_run_time(connection, job_id, run.node_id, now_ms=now_ms)
    if run.tier is Tier.SERVERLESS:
        await release_node(connection, ids, run.node_id, f"its run ended: {outcome.message}", now_ms=now_ms)
    await bump_desired(connection, run.node_id)
    return True


async def _move_job_on(connection: Connection, job: Standing, outcome: Outcome, *, now_ms: int) -> None:
    facts: dict[str, object] = {}
    columns: dict[str, object] = {"wait_reason": None, "pause_reason": None}
    if outcome.job_state in TERMINAL_JOB_STATES:
        facts = {"reason": outcome.job_end}
        columns |= {"end_reason": outcome.job_end, "end_message": outcome.message, "ended_ms": now_ms}
    elif outcome.job_state is JobState.PAUSED:
        facts = {"reason": job.pause_reason}
        columns = {"wait_reason": outcome.message}
    event = Event(outcome.job_state, outcome.message, facts)
    await move_job(connection, job.job_id, outcome.job_state, event, now_ms=now_ms, **columns)


def _ran_ms(run: RunRow, now_ms: int) -> int:
    return 0 if run.running_ms is None else max(0, now_ms - run.running_ms)
