"""What an agent says of its runs becomes what the database says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from allpass.wire.agent import ExitReport, RunReport
from app.core.lifecycle import Outcome, ProcessExit, after_fault, judge_exit
from app.core.model.job import JobEnd, JobState
from app.core.model.run import RunEnd, RunPurpose, RunState, StopMode
from app.core.out_of_memory import Ran, ran_out
from app.core.progress import believed_total
from app.db.checkpoints.unsaved import set_saves
from app.db.connection import Connection
from app.db.engine import Database
from app.db.jobs.libraries import set_libraries
from app.db.jobs.links import set_links
from app.db.learning.calibrations import set_facts
from app.db.nodes.tenure import offer_key_of
from app.db.runs.desired_state import LiveRun, live_runs
from app.db.runs.live_runs import RunRow, faults_of, lock_run, shared_process
from app.db.runs.members import has_told_exit
from app.db.runs.progress import done_by, enter_running, enter_starting, raise_step, raise_tokens, set_total_steps
from app.db.text import storable_text
from app.db.transitions import Event, add_job_event
from app.errors import InvalidInput
from app.ports.clock import IdSource
from app.services.gangs.settle_exits import note_exit
from app.services.gangs.take_member_report import take_member_report
from app.services.jobs.begin_again import after_own_failure
from app.services.jobs.retry_out_of_memory import BESIDE_OTHERS, after_out_of_memory, ran_out_beside_others
from app.services.learning.learn_from_runs import OUT_OF_MEMORY
from app.services.moves.advance_move import ask_source, complete_move
from app.services.runs.capabilities import judged_otherwise, says_more, take_progress, take_report
from app.services.runs.end_run import end_run
from app.services.runs.last_line import with_last_line
from app.services.runs.report_restart import report_restart

_BEFORE_RUNNING = (RunState.ASSIGNED, RunState.STARTING, RunState.PROMOTING)


async def apply_run_reports(
    database: Database, ids: IdSource, node_id: str, reports: list[RunReport], *, now_ms: int, fault_budget: int
) -> bool:
    """Apply the reports that concern live runs of this node; whether any state changed.

    Reports about runs that are over, fenced or on other nodes are ignored: the reply will not list those runs.
    Each report is taken in its own transaction, and saying the same again changes nothing. Raises InvalidInput
    for an exit that contradicts itself.
    """
    for index, report in enumerate(reports):
        _check(report, index)
    if not reports:
        return False
    async with database.statement() as connection:
        known = {(run.run_id, run.job_id, run.epoch): run for run in await live_runs(connection, node_id)}
    changed = False
    for report in reports:
        run = known.get((report.run_id, report.job_id, report.epoch))
        if run is not None:
            await take_report(database, ids, report, run, now_ms=now_ms)
        if run is not None and run.node_rank:
            changed |= await take_member_report(database, ids, report, now_ms=now_ms, fault_budget=fault_budget)
            continue
        if run is None or not _says_something_new(report, run):
            continue
        if _is_progress_alone(report, run):
            await _take_progress(database, report, run, now_ms=now_ms)
        else:
            changed |= await _take(database, ids, report, now_ms=now_ms, fault_budget=fault_budget)
    return changed


async def _take_progress(database: Database, report: RunReport, run: LiveRun, *, now_ms: int) -> None:
    """The epoch is the fence: a run that ended meanwhile has lost it. That it saves comes first: whoever pauses the job
    between two of these statements would hear that its steps would be lost."""
    if report.saves and not run.saves:
        async with database.statement() as connection:
            await set_saves(connection, report.job_id, report.epoch, now_ms=now_ms)
    if report.step > run.step:
        async with database.statement() as connection:
            await raise_step(connection, report.job_id, report.epoch, report.step)
    if _tells_another_total(report, run):
        async with database.transaction() as connection:
            await set_total_steps(connection, report.job_id, report.epoch, report.total_steps)
    if (report.tokens or 0) > run.tokens:
        async with database.statement() as connection:
            await _count(connection, report)
    if report.links and report.links != run.links:
        async with database.statement() as connection:
            await set_links(connection, report.job_id, report.epoch, report.links)
    if _tells_libraries(report, run):
        async with database.statement() as connection:
            await _note_libraries(connection, report)
    await take_progress(database, report)


def _check(report: RunReport, index: int) -> None:
    if (report.phase == "exited") != (report.exit is not None):
        raise InvalidInput("`exit` goes with the phase `exited`, and only with it", param=f"runs[{index}].exit")
    if report.exit is not None:
        told = (report.exit.exit_code, report.exit.signal, report.exit.environment_error)
        if sum(item is not None for item in told) > 1:
            raise InvalidInput(
                "give one of exit_code, signal and environment_error (none: nobody saw how it ended)",
                param=f"runs[{index}].exit",
            )


def _says_something_new(report: RunReport, run: LiveRun) -> bool:
    if report.phase == "exited":
        return True
    if report.phase == "preparing":
        return run.state is RunState.ASSIGNED
    if report.phase == "prepared" or run.state is RunState.STANDBY:
        return report.phase == "prepared" and run.state is RunState.STANDBY
    if report.phase == "running" and run.state in _BEFORE_RUNNING:
        return True
    further = report.step > run.step or (report.tokens or 0) > run.tokens or says_more(report)
    told = (
        (report.saves and not run.saves)
        or _tells_another_total(report, run)
        or (bool(report.links) and report.links != run.links)
        or _tells_libraries(report, run)
    )
    return (further or told) and run.state not in _BEFORE_RUNNING


def _tells_another_total(report: RunReport, run: LiveRun) -> bool:
    told = report.total_steps or run.total_steps
    return believed_total(run.stated_steps, told, max(report.step, run.step)) != run.total_steps


def _tells_libraries(report: RunReport, run: LiveRun) -> bool:
    """What a run has that goes on is news only where nobody knows what its job began with."""
    if not report.libraries or (run.goes_on and run.libraries):
        return False
    return _storable(report.libraries) != run.libraries


def _storable(libraries: Mapping[str, str]) -> dict[str, str]:
    return {storable_text(name): storable_text(version) for name, version in libraries.items()}


async def _note_libraries(connection: Connection, report: RunReport) -> None:
    if report.libraries:
        libraries = _storable(report.libraries)
        await set_libraries(connection, report.run_id, report.job_id, report.epoch, libraries)


def _is_progress_alone(report: RunReport, run: LiveRun) -> bool:
    return report.phase in ("running", "stopping") and run.state not in _BEFORE_RUNNING


async def _take(database: Database, ids: IdSource, report: RunReport, *, now_ms: int, fault_budget: int) -> bool:
    async with database.transaction() as connection:
        run = await lock_run(connection, report.run_id)
        if run is None or run.state is RunState.ENDED or report.job_id not in run.job_ids:
            return False
        if report.phase == "preparing":
            return run.state is RunState.ASSIGNED and await enter_starting(connection, run.run_id, now_ms=now_ms)
        if report.phase == "prepared":
            return run.state is RunState.STANDBY and await ask_source(connection, ids, run.run_id, now_ms=now_ms)
        started = False
        if run.state in _BEFORE_RUNNING and _user_code_ran(report):
            started = await _start(connection, run, report.step, now_ms=now_ms)
            run = replace(run, state=RunState.RUNNING, running_ms=now_ms)
        if run.state not in _BEFORE_RUNNING:
            await raise_step(connection, report.job_id, report.epoch, report.step)
            await set_total_steps(connection, report.job_id, report.epoch, report.total_steps)
            await _count(connection, report)
            if report.saves:
                await set_saves(connection, report.job_id, report.epoch, now_ms=now_ms)
            if report.links:
                await set_links(connection, report.job_id, report.epoch, report.links)
            await _note_libraries(connection, report)
        if report.exit is None:
            return started
        await _end(connection, ids, run, report, report.exit, now_ms=now_ms, fault_budget=fault_budget)
        return True


async def _count(connection: Connection, report: RunReport) -> None:
    if report.tokens:
        await raise_tokens(connection, report.run_id, report.job_id, report.epoch, report.tokens)


async def _start(connection: Connection, run: RunRow, step: int, *, now_ms: int) -> bool:
    done = await done_by(connection, run.job_ids)
    first_step = await enter_running(connection, run.run_id, run.job_ids, step=step, now_ms=now_ms, purpose=run.purpose)
    if first_step is not None:
        await report_restart(connection, run, done, first_step, now_ms=now_ms)
    if first_step is not None and run.state is RunState.PROMOTING:
        await complete_move(connection, run.run_id, step=first_step, now_ms=now_ms)
    return first_step is not None


def _user_code_ran(report: RunReport) -> bool:
    """A process may be over before anyone could say that it runs."""
    return report.phase == "running" or (report.exit is not None and report.exit.environment_error is None)


async def _end(
    connection: Connection,
    ids: IdSource,
    run: RunRow,
    report: RunReport,
    exit_: ExitReport,
    *,
    now_ms: int,
    fault_budget: int,
) -> None:
    if run.node_rank is not None and await has_told_exit(connection, run.run_id):
        return
    outcome = await judged_otherwise(connection, run, report.job_id, exit_, now_ms=now_ms)
    is_crowded = await ran_out_beside_others(connection, run.node_id, exit_, now_ms=now_ms)
    if outcome is None:
        outcome = await _judge(connection, run, exit_, is_crowded, now_ms=now_ms, fault_budget=fault_budget)
    if run.state is RunState.STANDBY:  # no process of it ever was
        await end_run(connection, ids, run.run_id, outcome, now_ms=now_ms)
        return
    data = {
        "run_id": run.run_id,
        "exit_code": exit_.exit_code,
        "signal": exit_.signal,
        "step": report.step,
        "last_lines": storable_text(exit_.last_lines),
    }
    await add_job_event(connection, report.job_id, Event("process_exited", outcome.message, data), now_ms=now_ms)
    if run.node_rank is not None and outcome.run_end is RunEnd.FAILED and exit_.environment_error is None:
        await note_exit(connection, ids, run, outcome, exit_, now_ms=now_ms)
        return
    facts = _facts(exit_, is_crowded) if run.purpose is RunPurpose.TRAIN else {}  # a look at a few rows is no training
    if facts and not await shared_process(connection, run.run_id):  # its steps took as long as those of both
        await set_facts(connection, run.run_id, facts)
    avoids = exit_.machine_fault or is_crowded
    avoid_offer = await offer_key_of(connection, run.node_id) if avoids else None
    await end_run(connection, ids, run.run_id, outcome, now_ms=now_ms, avoid_offer=avoid_offer)


def _facts(exit_: ExitReport, is_crowded: bool) -> dict[str, Any]:
    """What there is to learn from the run; of memory that others filled, nothing."""
    told = {} if exit_.training is None else exit_.training.model_dump(exclude_none=True, exclude_defaults=True)
    told["versions"] = {storable_text(name): storable_text(text) for name, text in told.pop("versions", {}).items()}
    if "sharding" in told:
        told["sharding"] = storable_text(told["sharding"])
    if not is_crowded and ran_out(exit_.exit_code, exit_.last_lines) is Ran.GPU:
        told[OUT_OF_MEMORY] = True
    return told if len(told) > 1 else {}


async def _judge(
    connection: Connection, run: RunRow, exit_: ExitReport, is_crowded: bool, *, now_ms: int, fault_budget: int
) -> Outcome:
    if run.state is RunState.STOPPING and run.stop_mode is StopMode.KILL:
        return Outcome(RunEnd.CANCELLED, JobState.CANCELLED, JobEnd.CANCELLED, False, "stopped when asked to")
    asked = run.state is RunState.STOPPING and run.stop_mode is StopMode.CHECKPOINT
    error = exit_.environment_error
    if run.state is RunState.STANDBY:
        why = "its agent gave it up" if error is None else storable_text(error)
        return Outcome(RunEnd.FAILED, JobState.WAITING, None, False, f"the next machine could not be prepared: {why}")
    if run.state is RunState.PROMOTING and error is not None:  # all was in its place before: this machine fails
        faults = await faults_of(connection, run.job_ids)
        end = JobEnd.ENVIRONMENT_FAILED
        return after_fault(storable_text(error), RunEnd.FAILED, end, faults=faults, fault_budget=fault_budget)
    outcome = judge_exit(
        ProcessExit(
            exit_code=exit_.exit_code,
            signal=exit_.signal,
            environment_error=None if error is None else storable_text(error),
            machine_fault=exit_.machine_fault,
            saved_after_stop=exit_.saved_after_stop,
            stranded=exit_.stranded,
        ),
        # An agent whose machine is being taken away asks its processes to save and leave without us.
        asked_to_checkpoint=asked or exit_.saved_after_stop,
        faults=await faults_of(connection, run.job_ids),
        fault_budget=fault_budget,
    )
    if outcome.run_end is RunEnd.DEMOTED and not asked and not exit_.stranded:
        return replace(outcome, run_end=RunEnd.PREEMPTED, message="saved and left: its machine is being taken away")
    if is_crowded and outcome.job_end is JobEnd.USER_CODE_FAILED:
        faults = await faults_of(connection, run.job_ids)
        return after_fault(BESIDE_OTHERS, RunEnd.FAILED, JobEnd.OUT_OF_MEMORY, faults=faults, fault_budget=fault_budget)
    if outcome.job_end is JobEnd.USER_CODE_FAILED:
        outcome = await _judge_failure(connection, run, exit_, outcome, now_ms=now_ms)
    return outcome


async def _judge_failure(
    connection: Connection, run: RunRow, exit_: ExitReport, outcome: Outcome, *, now_ms: int
) -> Outcome:
    if run.node_rank is not None:  # whose failure it was is said when the processes of all its machines are over
        return replace(outcome, message=with_last_line(outcome.message, exit_.last_lines))
    memory = ran_out(exit_.exit_code, exit_.last_lines)
    if memory is not None:
        outcome = await after_out_of_memory(connection, run, memory, now_ms=now_ms)
    else:
        outcome = replace(outcome, message=with_last_line(outcome.message, exit_.last_lines))
    return await after_own_failure(connection, run, outcome, now_ms=now_ms)
