"""End a run, whoever found out that it is over: its agent, the reconciler, a cancellation, a cap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.core.lifecycle import Outcome, of_profile, without_saving
from app.core.model.job import PLACEABLE_JOB_STATES, TERMINAL_JOB_STATES, JobEnd, JobState
from app.core.model.move import MoveState
from app.core.model.node import Tier
from app.core.model.run import RunEnd, RunPurpose, RunState
from app.core.steering import JobStanding, settle
from app.db.connection import Connection
from app.db.jobs.endings import count_profile_try, give_back_job
from app.db.jobs.steering import standings_of
from app.db.learning.run_history import remember_run_time
from app.db.moves.planned_moves import MoveRow, open_move_of_run
from app.db.runs.live_runs import RunRow, lock_run
from app.db.runs.members import close_member
from app.db.transitions import Event, move_job
from app.ports.clock import IdSource
from app.services.moves.advance_move import (
    call_off_move,
    close_source,
    fail_target,
    hand_over,
    leave_source,
    left_as,
)
from app.services.runs.capabilities import tell_job_stopped, tell_run_ended
from app.services.runs.close_run import close_run
from app.services.runs.report_lost_steps import report_lost_steps

_PLANNED_MOVES = frozenset({RunEnd.DEMOTED, RunEnd.MIGRATED, RunEnd.PREEMPTED})


async def end_run(
    connection: Connection,
    ids: IdSource,
    run_id: str,
    outcome: Outcome,
    *,
    now_ms: int,
    avoid_offer: str | None = None,
    unreached_offer: str | None = None,
    not_before_ms: int = 0,
) -> bool:
    """Close the run, hand its jobs on as `outcome` says, and let go of a node that dies with its run.

    False, with nothing written, when the run is already over: the first to find out decides. The jobs' epoch is
    raised, so that nothing this run still sends can count. A job that would go on is paused instead when that was
    asked of it, and cancelled when its time is used up; one whose move has a prepared target goes on there at once.
    `avoid_offer` keeps the next placement from the same offer, `unreached_offer` too where its like is to be had;
    `not_before_ms` is a back-off.
    """
    run = await lock_run(connection, run_id)
    if run is None or run.state is RunState.ENDED:
        return False
    if run.member_of is not None:  # what happens to one of the machines of a job happens to all
        lead, outcome = await _leader_of(connection, run, outcome, now_ms=now_ms)
        beside = {"avoid_offer": avoid_offer, "unreached_offer": unreached_offer}
        return lead is None or await end_run(
            connection, ids, lead, outcome, now_ms=now_ms, **beside, not_before_ms=not_before_ms
        )
    move = await open_move_of_run(connection, run_id)
    if move is not None and await _ended_beside_its_job(connection, ids, run, move, outcome, now_ms=now_ms):
        return True
    profiled = run.purpose is RunPurpose.PROFILE
    if profiled:
        outcome = of_profile(outcome)
    jobs = await standings_of(connection, run.job_ids)
    settled = {job_id: settle(outcome, jobs[job_id], now_ms) for job_id in run.job_ids}
    outcome = await _told_of_losses(connection, run, outcome, settled, now_ms=now_ms)
    hands_over = move is not None and move.state is MoveState.SAVING and _go_on(settled)
    ends = {one.run_end for one in settled.values()}
    run_end = ends.pop() if len(ends) == 1 else outcome.run_end
    if hands_over and run_end is RunEnd.DEMOTED:
        run_end = left_as(run)
    elif run.evicted_for_job_id is not None and run_end is RunEnd.DEMOTED:
        run_end = RunEnd.PREEMPTED
    await close_run(connection, ids, run, run_end, outcome.message, now_ms=now_ms)
    if move is not None and hands_over:
        await hand_over(connection, move, run, now_ms=now_ms, fault=outcome.fault)
        return True
    if move is not None:
        await _leave_move(connection, ids, move, run_id, outcome, now_ms=now_ms)
    trained_ms = 0 if profiled or run.running_ms is None else max(0, now_ms - run.running_ms)
    for job_id in run.job_ids:
        await give_back_job(
            connection,
            job_id,
            serverless_ms=trained_ms if run.tier is Tier.SERVERLESS else 0,
            ran_ms=trained_ms,
            fault=outcome.fault,
            planned_move=not profiled and settled[job_id].run_end in _PLANNED_MOVES,
            avoid_offer=avoid_offer,
            unreached_offer=unreached_offer,
            not_before_ms=not_before_ms,
        )
        if profiled and outcome.run_end is not RunEnd.FINISHED:
            await count_profile_try(connection, job_id)
        await _move_job_on(connection, jobs[job_id], settled[job_id], now_ms=now_ms)
        await tell_run_ended(connection, run, job_id, settled[job_id], now_ms=now_ms)
        if settled[job_id].job_state is JobState.SUCCEEDED:
            await remember_run_time(connection, job_id, run.node_id, now_ms=now_ms)
    return True


async def _leader_of(
    connection: Connection, member: RunRow, outcome: Outcome, *, now_ms: int
) -> tuple[str | None, Outcome]:
    """The run that leads the member, and its end in words; None where that one is over: then only this one is left."""
    lead = await lock_run(connection, member.member_of or "")
    outcome = replace(outcome, message=f"machine {member.node_rank} of its job: {outcome.message}")
    if lead is None or lead.state is RunState.ENDED:
        told = {"end_reason": outcome.run_end, "end_message": outcome.message}
        await close_member(connection, member.run_id, member.node_id, now_ms=now_ms, **told)
        return None, outcome
    return lead.run_id, outcome


async def _ended_beside_its_job(
    connection: Connection, ids: IdSource, run: RunRow, move: MoveRow, outcome: Outcome, *, now_ms: int
) -> bool:
    """The job of a move belongs to one of its two runs: the end of the other one changes nothing for the job."""
    if run.run_id == move.target_run_id and run.state is RunState.STANDBY:
        await fail_target(connection, ids, move, outcome, now_ms=now_ms)
        return True
    if run.run_id == move.source_run_id and move.state is MoveState.PROMOTING:
        await close_source(connection, ids, move, now_ms=now_ms)
        return True
    return False


async def _leave_move(
    connection: Connection, ids: IdSource, move: MoveRow, run_id: str, outcome: Outcome, *, now_ms: int
) -> None:
    """The run that has the job ended, and the job does not go on with the other one."""
    if run_id == move.source_run_id:
        await call_off_move(connection, ids, move, outcome.message, now_ms=now_ms)
        return
    if outcome.job_end is JobEnd.CANCELLED:  # whoever cancels wants no machine a moment longer
        await close_source(connection, ids, move, now_ms=now_ms)
    else:
        await leave_source(connection, move, outcome.message, now_ms=now_ms)


async def _told_of_losses(
    connection: Connection, run: RunRow, outcome: Outcome, settled: dict[str, Outcome], *, now_ms: int
) -> Outcome:
    """The run's end, and in `settled` what it means for each job, once it is told what was not saved."""
    for job_id in run.job_ids:
        if not _loses(settled[job_id]):
            continue
        lost = await report_lost_steps(connection, run, job_id, settled[job_id], now_ms=now_ms)
        if lost is not None:
            outcome, settled[job_id] = without_saving(outcome, lost), without_saving(settled[job_id], lost)
    return outcome


def _loses(outcome: Outcome) -> bool:
    """Whether the end, which nobody but the job's owner may have wanted, was to keep what the job has done."""
    return outcome.job_state not in TERMINAL_JOB_STATES or outcome.job_end is JobEnd.MAX_DURATION


def _go_on(settled: Mapping[str, Outcome]) -> bool:
    return all(one.job_state in PLACEABLE_JOB_STATES for one in settled.values())


async def _move_job_on(connection: Connection, job: JobStanding, outcome: Outcome, *, now_ms: int) -> None:
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
    if outcome.job_state not in PLACEABLE_JOB_STATES:
        await tell_job_stopped(connection, job.job_id, outcome.job_state, now_ms=now_ms)
