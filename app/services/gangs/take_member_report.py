"""What the agent of a further machine of a job says of its part."""

from __future__ import annotations

from dataclasses import replace

from allpass.wire.agent import ExitReport, RunReport
from app.core.lifecycle import Outcome, ProcessExit, judge_exit
from app.core.model.job import JobEnd
from app.core.model.run import RunEnd, RunState
from app.db.connection import Connection
from app.db.engine import Database
from app.db.nodes.tenure import offer_key_of
from app.db.runs.live_runs import RunRow, faults_of, lock_run
from app.db.runs.members import begin_member, close_member, gang_of
from app.db.text import storable_text
from app.db.transitions import Event, add_job_event
from app.ports.clock import IdSource
from app.services.gangs.settle_exits import note_exit, settle_exits
from app.services.runs.end_run import end_run
from app.services.runs.last_line import with_last_line

_BEFORE_RUNNING = (RunState.ASSIGNED, RunState.STARTING)


async def take_member_report(
    database: Database, ids: IdSource, report: RunReport, *, now_ms: int, fault_budget: int
) -> bool:
    """Whether a state changed. A process that ends with code 0, or when all were asked to save and leave, is done; any
    other end of one ends the run of all."""
    if report.phase not in ("preparing", "running", "exited"):
        return False
    async with database.transaction() as connection:
        run = await lock_run(connection, report.run_id)
        if run is None or run.state is RunState.ENDED or run.member_of is None:
            return False
        if report.exit is not None:
            await _end(connection, ids, run, report.exit, now_ms=now_ms, fault_budget=fault_budget)
            return True
        to = RunState.STARTING if report.phase == "preparing" else RunState.RUNNING
        sources = (RunState.ASSIGNED,) if to is RunState.STARTING else _BEFORE_RUNNING
        return run.state in sources and await begin_member(connection, run.run_id, to, now_ms=now_ms)


async def _end(
    connection: Connection, ids: IdSource, run: RunRow, exit_: ExitReport, *, now_ms: int, fault_budget: int
) -> None:
    gang = await gang_of(connection, run.run_id)
    if any(one.run_id == run.run_id and one.exit_told is not None for one in gang):
        return  # said before
    lead = await lock_run(connection, run.member_of or "")
    asked = lead is not None and lead.state is RunState.STOPPING
    outcome = await _judge(connection, run, exit_, asked=asked, fault_budget=fault_budget)
    await _tell(connection, run, exit_, outcome, now_ms=now_ms)
    if asked or outcome.run_end is RunEnd.FINISHED:
        await close_member(
            connection, run.run_id, run.node_id, now_ms=now_ms, end_reason=outcome.run_end, end_message=outcome.message
        )
        left = [one for one in gang if one.run_id != run.run_id]
        await settle_exits(connection, ids, left, now_ms=now_ms)
    elif exit_.environment_error is not None:
        avoid = await offer_key_of(connection, run.node_id) if exit_.machine_fault else None
        await end_run(connection, ids, run.run_id, outcome, now_ms=now_ms, avoid_offer=avoid)
    else:
        await note_exit(connection, ids, run, outcome, exit_, now_ms=now_ms)


async def _judge(connection: Connection, run: RunRow, exit_: ExitReport, *, asked: bool, fault_budget: int) -> Outcome:
    outcome = judge_exit(
        ProcessExit(
            exit_code=exit_.exit_code,
            signal=exit_.signal,
            environment_error=None if exit_.environment_error is None else storable_text(exit_.environment_error),
            machine_fault=exit_.machine_fault,
        ),
        asked_to_checkpoint=asked,
        faults=await faults_of(connection, run.job_ids),
        fault_budget=fault_budget,
    )
    if outcome.job_end is JobEnd.USER_CODE_FAILED and exit_.environment_error is None:
        outcome = replace(outcome, message=with_last_line(outcome.message, exit_.last_lines))
    return outcome


async def _tell(connection: Connection, run: RunRow, exit_: ExitReport, outcome: Outcome, *, now_ms: int) -> None:
    data = {
        "run_id": run.run_id,
        "rank": run.node_rank,
        "exit_code": exit_.exit_code,
        "signal": exit_.signal,
        "last_lines": storable_text(exit_.last_lines),
    }
    told = f"machine {run.node_rank}: {outcome.message}"
    for job_id in run.job_ids:
        await add_job_event(connection, job_id, Event("process_exited", told, data), now_ms=now_ms)
