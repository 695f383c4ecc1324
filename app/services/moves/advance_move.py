"""A planned move, arrow by arrow (`app.core.lifecycle.MOVE_TRANSITIONS`). Each is part of the transaction of whoever
brings the news, holds the job's lock, and does nothing when somebody else was first."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.move import MoveState, back_off_ms
from app.core.model.node import Tier
from app.core.model.run import RunEnd, RunState, StopMode
from app.core.policies.reasons import duration
from app.db.checkpoints.manifests import newest_before
from app.db.connection import Connection
from app.db.jobs.endings import give_back_job, set_step
from app.db.moves.planned_moves import (
    MoveRow,
    advance,
    failed_moves,
    measured_pause_ms,
    open_move_of_job,
    open_move_of_run,
    set_pause,
    unmeasured_move,
)
from app.db.runs.live_runs import RunRow, lock_run
from app.db.transitions import Event, add_job_event, bump_desired, move_job, move_run
from app.ports.clock import IdSource
from app.services.runs.close_run import close_run

MOVED_AWAY = "its job goes on elsewhere, from its final checkpoint"


async def ask_source(
    connection: Connection, ids: IdSource, target_run_id: str, *, now_ms: int, told: str | None = None
) -> bool:
    """The target is prepared: ask the source for its final checkpoint. Whether that is news.

    `told`: why the source is asked before that; the target then goes on as soon as it is prepared.
    """
    move = await open_move_of_run(connection, target_run_id)
    if move is None or move.state is not MoveState.PREPARING:
        return False
    source = await lock_run(connection, move.source_run_id)
    if source is None or source.state is not RunState.RUNNING:
        await call_off_move(connection, ids, move, "its source does not train any more", now_ms=now_ms)
        return True
    await advance(connection, move.move_id, MoveState.SAVING, saving_ms=now_ms)
    after = duration(max(0, now_ms - move.begun_ms))
    ready = told or f"the next machine is prepared (after {after}): saves at the next step"
    asked = {"stop_mode": StopMode.CHECKPOINT, "stop_asked_ms": now_ms}
    await move_run(connection, source.run_id, RunState.STOPPING, Event("run_stopping", ready), now_ms=now_ms, **asked)
    await bump_desired(connection, source.node_id)
    return True


async def hand_over(connection: Connection, move: MoveRow, source: RunRow, *, now_ms: int, fault: bool = False) -> None:
    """The job becomes the target's, which goes on from the newest checkpoint; the source is fenced from now on.

    The caller has accepted the checkpoint, in this transaction or before, and holds the job's lock.
    """
    newest = await newest_before(connection, move.job_id, move.target_epoch)
    step = 0 if newest is None else newest.step
    ran_ms = 0 if source.running_ms is None else max(0, now_ms - source.running_ms)
    await give_back_job(
        connection,
        move.job_id,
        serverless_ms=ran_ms if source.tier is Tier.SERVERLESS else 0,
        ran_ms=ran_ms,
        fault=fault,
        planned_move=True,
        avoid_offer=None,
        not_before_ms=0,
        epoch=move.target_epoch,
    )
    await advance(connection, move.move_id, MoveState.PROMOTING, promoted_ms=now_ms, step=step)
    told = Event(
        "run_promoting",
        f"goes on at step {step} on its next machine",
        {"node_id": move.target_node_id, "epoch": move.target_epoch, "step": step},
    )
    await move_run(connection, move.target_run_id, RunState.PROMOTING, told, now_ms=now_ms)
    await bump_desired(connection, move.target_node_id)


async def hand_over_saved(connection: Connection, run_id: str, *, now_ms: int) -> None:
    """This run's final checkpoint was accepted in this transaction: if it is the source of a move, hand over.

    The source stays `stopping` until its agent has told its end, so that the end of its log is not lost.
    """
    move = await open_move_of_run(connection, run_id)
    if move is None or move.state is not MoveState.SAVING or run_id != move.source_run_id:
        return
    source = await lock_run(connection, run_id)
    if source is not None and source.state is RunState.STOPPING:
        await hand_over(connection, move, source, now_ms=now_ms)


async def complete_move(connection: Connection, run_id: str, *, step: int, now_ms: int) -> None:
    """Code of a target runs: its job has moved, once the source has left too. Until then both are paid."""
    move = await open_move_of_run(connection, run_id)
    if move is None or run_id != move.target_run_id:
        return
    await set_step(connection, move.job_id, step)
    source = await lock_run(connection, move.source_run_id)
    if source is None or source.state is RunState.ENDED:
        await advance(connection, move.move_id, MoveState.DONE, ended_ms=now_ms)


async def leave_source(connection: Connection, move: MoveRow, why: str, *, now_ms: int) -> None:
    """The target, whose job it is, is over first. The source stays until its agent has told its end, or has nothing
    more to send: what it has left in its folders is the job's, too. So long the move is open."""
    source = await lock_run(connection, move.source_run_id)
    if source is None or source.state is RunState.ENDED:
        await advance(connection, move.move_id, MoveState.ABANDONED, ended_ms=now_ms, end_message=why)


async def close_source(connection: Connection, ids: IdSource, move: MoveRow, *, now_ms: int) -> None:
    """The source of a move whose job is the target's already is over; the move is, if code of the target runs."""
    source = await lock_run(connection, move.source_run_id)
    target = await lock_run(connection, move.target_run_id)
    if source is not None and source.state is not RunState.ENDED:
        await close_run(connection, ids, source, left_as(source), MOVED_AWAY, now_ms=now_ms)
    if target is not None and target.running_ms is not None:
        await advance(connection, move.move_id, MoveState.DONE, ended_ms=now_ms)
    elif target is None or target.state is RunState.ENDED:
        why = "its next machine was lost before its code ran"
        await advance(connection, move.move_id, MoveState.ABANDONED, ended_ms=now_ms, end_message=why)


async def call_off_move(
    connection: Connection,
    ids: IdSource,
    move: MoveRow,
    why: str,
    *,
    now_ms: int,
    target_end: RunEnd = RunEnd.CANCELLED,
    failed: bool = False,
) -> None:
    """End the target, which has never run code of the job. A source that was asked to save does so and leaves: the job
    is `checkpointing` then.

    `failed`: the target could not be had; the job then stays where it is for a while.
    """
    wait_ms = back_off_ms(await failed_moves(connection, move.job_id)) if failed else 0
    not_before_ms = now_ms + wait_ms if failed else 0
    ended = {"ended_ms": now_ms, "end_message": why, "not_before_ms": not_before_ms}
    if not await advance(connection, move.move_id, MoveState.ABANDONED, **ended):
        return
    again = f"; not tried again for {duration(wait_ms)}" if failed else ""
    told = Event("move_abandoned", f"the move is called off: {why}{again}", {"target_run_id": move.target_run_id})
    await add_job_event(connection, move.job_id, told, now_ms=now_ms)
    target = await lock_run(connection, move.target_run_id)
    if target is not None and target.state is not RunState.ENDED:
        await close_run(connection, ids, target, target_end, why, now_ms=now_ms)
    source = await lock_run(connection, move.source_run_id)
    if source is not None and source.state is RunState.STOPPING:
        saving = Event(
            JobState.CHECKPOINTING,
            "saves and leaves, as it was asked to, and then waits for a place",
            {"run_id": move.source_run_id},
        )
        await move_job(connection, move.job_id, JobState.CHECKPOINTING, saving, now_ms=now_ms)


async def drop_move(connection: Connection, ids: IdSource, job_id: str, why: str, *, now_ms: int) -> bool:
    """Something else is wanted of the job: its target is called off, unless the job is the target's already.

    Whether the source had been asked to save, so that the job is `checkpointing` now.
    """
    move = await open_move_of_job(connection, job_id)
    if move is None or move.state is MoveState.PROMOTING:
        return False
    await call_off_move(connection, ids, move, why, now_ms=now_ms)
    return move.state is MoveState.SAVING


async def fail_target(connection: Connection, ids: IdSource, move: MoveRow, outcome: Outcome, *, now_ms: int) -> None:
    """The target ended before the job was its own."""
    end = outcome.run_end if outcome.run_end in (RunEnd.NODE_LOST, RunEnd.FAILED) else RunEnd.CANCELLED
    await call_off_move(connection, ids, move, outcome.message, now_ms=now_ms, target_end=end, failed=True)


async def give_up_target(connection: Connection, ids: IdSource, target_run_id: str, why: str, *, now_ms: int) -> None:
    """It has not prepared the move in time; one that has meanwhile is left alone."""
    await lock_run(connection, target_run_id)
    move = await open_move_of_run(connection, target_run_id)
    if move is not None and move.state is MoveState.PREPARING:
        end = RunEnd.FAILED
        await call_off_move(connection, ids, move, why, now_ms=now_ms, target_end=end, failed=True)


async def close_late_source(connection: Connection, ids: IdSource, source_run_id: str, *, now_ms: int) -> None:
    """It had all the time that a process is given to leave, and sends nothing."""
    await lock_run(connection, source_run_id)
    move = await open_move_of_run(connection, source_run_id)
    if move is not None and move.state is MoveState.PROMOTING and move.source_run_id == source_run_id:
        await close_source(connection, ids, move, now_ms=now_ms)


async def measure_pause(connection: Connection, job_id: str, run_id: str, *, now_ms: int) -> None:
    """Once a target has measured its first step: say for how long training paused."""
    move = await unmeasured_move(connection, job_id, run_id)
    pause_ms = None if move is None else await measured_pause_ms(connection, move)
    if move is None or pause_ms is None:
        return
    await set_pause(connection, move.move_id, pause_ms, now_ms=now_ms)
    told = f"moved at step {move.step}, {pause_ms / 1000:.1f} s pause"
    event = Event("move_measured", told, {"step": move.step, "pause_ms": pause_ms, "run_id": run_id})
    await add_job_event(connection, job_id, event, now_ms=now_ms)


def left_as(source: RunRow) -> RunEnd:
    """Why the source of a move ended."""
    return RunEnd.DEMOTED if source.tier is Tier.SERVERLESS else RunEnd.MIGRATED
