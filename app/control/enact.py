"""Make a plan true: one transaction in which each action is written whole, or dropped because its rows moved on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.control.begin_move import migrate, move_out
from app.control.begin_run import Held, begin_run
from app.control.context import ControlContext
from app.control.enact_merge import merge_jobs, split_jobs
from app.control.renting import MovedOnError, free_place, rent
from app.core.layout import Layout
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.merge import MergeMode
from app.core.model.plan import (
    Action,
    Assign,
    Demote,
    Merge,
    Migrate,
    MoveOut,
    Preempt,
    Provision,
    Release,
    Split,
    Start,
)
from app.core.model.run import RunState, StopMode
from app.db.connection import Connection
from app.db.decisions.enactment import (
    PlacedJob,
    attempt,
    held_gpus,
    job_to_place,
    jobs_of_run,
    node_of_run,
    occupy_node,
)
from app.db.lock_order import lock_scope
from app.db.merging.merges import merge_versions, open_merge_of
from app.db.runs.layouts import set_layout
from app.db.transitions import Event, add_job_event, add_node_event, bump_desired, move_job, move_run
from app.errors import Fenced, Unavailable
from app.services.moves.advance_move import drop_move
from app.services.moves.ask_to_leave import ask_to_leave
from app.services.nodes.release_node import release_node

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dropped:
    """An action that was not enacted, and why. `error`: it failed, as nothing should; else its rows had moved on."""

    action: Action | MoveOut
    why: str
    error: Exception | None = None


async def enact(
    connection: Connection,
    context: ControlContext,
    actions: Sequence[Action | MoveOut],
    *,
    now_ms: int,
    layouts: Mapping[str, Layout] | None = None,
) -> tuple[Dropped, ...]:
    """Write a plan's actions in order; returns those that were dropped. The caller has checked the term.
    `layouts`: by job, how its run is to be laid out on the GPUs that it is given.

    All rows are locked first, with what the jobs reach, in the order that everybody shares. An action is dropped when
    one of the row versions it was decided on has moved on, when a state does not allow it, or when it fails; the rest
    is enacted. What failed is told by `app.control.failed_actions`.
    """
    rows = {row_id for action in actions for row_id in _rows_of(action)}
    found = await lock_scope(connection, rows)
    found |= await merge_versions(connection, [row_id for row_id in rows if row_id.startswith("merge_")])
    dropped = []
    for action in actions:
        try:
            _check_versions(action, found)
            async with attempt(connection):
                await _carry_out_laid_out(connection, context, action, layouts or {}, now_ms=now_ms)
        except MovedOnError as moved:
            dropped.append(Dropped(action, str(moved)))
            await _tell_dropped(connection, action, str(moved), found, now_ms=now_ms)
        except (Fenced, Unavailable):
            raise
        except Exception as error:
            if connection.closed or connection.invalidated:
                raise  # nothing more can be written here
            dropped.append(Dropped(action, "it failed", error))
    return tuple(dropped)


async def enact_apart(
    context: ControlContext,
    actions: Sequence[Action | MoveOut],
    *,
    now_ms: int,
    layouts: Mapping[str, Layout] | None = None,
    at_once: int,
) -> tuple[Dropped, ...]:
    """`enact` under the leader's term, in one transaction, or several for a long plan. Where a transaction fails as a
    whole (its locks, its commit), its actions are enacted one by one, so that only the one that makes it fail is
    dropped.

    A leader renews its lease between transactions only, so none may be long. Rows that the first part changed are
    stale for the second, which is then dropped and decided anew: never wrong, at most later.
    """
    dropped: list[Dropped] = []
    for start in range(0, len(actions), at_once):
        some = actions[start : start + at_once]
        try:
            async with context.led() as connection:
                dropped += await enact(connection, context, some, now_ms=now_ms, layouts=layouts)
        except Fenced:
            raise
        except Exception as error:
            if isinstance(error, Unavailable) and not await context.database.answers():
                raise
            log.warning("%d actions are enacted one by one, for together they fail: %s", len(some), error)
            dropped += await _one_by_one(context, some, now_ms=now_ms, layouts=layouts)
    return tuple(dropped)


async def _one_by_one(
    context: ControlContext, actions: Sequence[Action | MoveOut], *, now_ms: int, layouts: Mapping[str, Layout] | None
) -> list[Dropped]:
    dropped: list[Dropped] = []
    for action in actions:
        try:
            async with context.led() as connection:
                dropped += await enact(connection, context, (action,), now_ms=now_ms, layouts=layouts)
        except Fenced:
            raise
        except Exception as error:
            if isinstance(error, Unavailable) and not await context.database.answers():
                raise
            dropped.append(Dropped(action, "it failed", error))
    return dropped


def _rows_of(action: Action | MoveOut) -> set[str]:
    rows = {row_id for row_id, _version in action.versions}
    for name in ("job_id", "companion_id", "run_id", "node_id", "for_job_id"):
        row_id = getattr(action, name, None)
        if row_id is not None:
            rows.add(row_id)
    return rows


def _check_versions(action: Action | MoveOut, found: Mapping[str, int]) -> None:
    for row_id, version in action.versions:
        if row_id not in found:
            raise MovedOnError(f"{row_id} does not exist")
        if found[row_id] != version:
            raise MovedOnError(f"{row_id} has moved on: decided on version {version}, it is now {found[row_id]}")


async def _tell_dropped(
    connection: Connection, action: Action | MoveOut, why: str, found: Mapping[str, int], *, now_ms: int
) -> None:
    event = Event("action_dropped", f"{action.kind} was dropped and is decided anew: {why}", {"action": action.kind})
    if isinstance(action, Release):
        if action.node_id in found:
            await add_node_event(connection, action.node_id, event, now_ms=now_ms)
        return
    job_id = action.for_job_id if isinstance(action, Provision) else action.job_id
    if job_id in found:
        await add_job_event(connection, job_id, event, now_ms=now_ms)


async def _carry_out_laid_out(
    connection: Connection,
    context: ControlContext,
    action: Action | MoveOut,
    layouts: Mapping[str, Layout],
    *,
    now_ms: int,
) -> None:
    """A run that is given GPUs keeps its layout, and the event of its start tells it."""
    if not isinstance(action, Start | Assign | Migrate | MoveOut) or action.job_id not in layouts:
        await _carry_out(connection, context, action, now_ms=now_ms)
        return
    layout = layouts[action.job_id]
    told = replace(action, reason=f"{action.reason}; {layout.in_words()}")
    await _carry_out(connection, context, told, now_ms=now_ms)
    await set_layout(connection, told.job_id, layout.as_json())


async def _carry_out(connection: Connection, context: ControlContext, action: Action | MoveOut, *, now_ms: int) -> None:
    match action:
        case Start():
            await _start(connection, context, action, now_ms=now_ms)
        case Assign():
            await _assign(connection, context, action, now_ms=now_ms)
        case Demote():
            await _demote(connection, context, action, now_ms=now_ms)
        case Provision():
            await _provision(connection, context, action, now_ms=now_ms)
        case Release():
            await _release(connection, context, action, now_ms=now_ms)
        case Migrate():
            await migrate(connection, context, action, now_ms=now_ms)
        case MoveOut():
            await move_out(connection, context, action, now_ms=now_ms)
        case Merge():
            await merge_jobs(connection, context, action, now_ms=now_ms)
        case Split():
            await split_jobs(connection, context, action, now_ms=now_ms)
        case Preempt():
            raise MovedOnError(f"{action.kind} cannot be enacted here")


async def _start(connection: Connection, context: ControlContext, action: Start, *, now_ms: int) -> None:
    job = await _placeable(connection, action.job_id)
    offer = action.offer
    node_id = await rent(connection, context, job, offer, action.reason, now_ms=now_ms)
    facts = {"offer": offer.key, "price_micros_per_hour": offer.price_per_hour.micros}
    held = Held(node_id, offer.tier, range(offer.gpu_count))
    why = action.reason
    await begin_run(connection, context, job, held, why, facts, now_ms=now_ms, purpose=action.purpose)


async def _assign(connection: Connection, context: ControlContext, action: Assign, *, now_ms: int) -> None:
    job = await _placeable(connection, action.job_id)
    tier = await free_place(connection, action.node_id, action.gpu_indices)
    held = Held(action.node_id, tier, action.gpu_indices)
    facts = {"gpu_indices": list(action.gpu_indices)}
    why = action.reason
    await begin_run(connection, context, job, held, why, facts, now_ms=now_ms, purpose=action.purpose)
    await occupy_node(connection, action.node_id)
    await bump_desired(connection, action.node_id)


async def _demote(connection: Connection, context: ControlContext, action: Demote, *, now_ms: int) -> None:
    job_ids = await jobs_of_run(connection, action.run_id)
    for job_id in job_ids:
        await drop_move(connection, context.ids, job_id, action.reason, now_ms=now_ms)
    node_id = await node_of_run(connection, action.run_id)
    asked = Event("run_stopping", action.reason)
    moved = await move_run(
        connection,
        action.run_id,
        RunState.STOPPING,
        asked,
        now_ms=now_ms,
        stop_mode=StopMode.CHECKPOINT,
        stop_asked_ms=now_ms,
    )
    if not moved or node_id is None:
        raise MovedOnError(f"{action.run_id} is over or is leaving already")
    for job_id in job_ids:
        saving = Event(JobState.CHECKPOINTING, action.reason, {"run_id": action.run_id})
        if not await move_job(connection, job_id, JobState.CHECKPOINTING, saving, now_ms=now_ms):
            raise MovedOnError(f"{job_id} is not running")
        merge = await open_merge_of(connection, job_id)
        if merge is not None and merge.mode is MergeMode.TOGETHER:  # the process ends for both
            await ask_to_leave(connection, context.ids, merge.partner_of(job_id), action.reason, now_ms=now_ms)
    await bump_desired(connection, node_id)


async def _provision(connection: Connection, context: ControlContext, action: Provision, *, now_ms: int) -> None:
    job = await job_to_place(connection, action.for_job_id)
    if job is None or job.project_id != action.project_id:
        raise MovedOnError(f"{action.for_job_id} is not a job of {action.project_id}")
    node_id = await rent(connection, context, job, action.offer, action.reason, now_ms=now_ms, ahead=action.ahead)
    if action.ahead:
        return
    told = Event("node_rented", action.reason, {"node_id": node_id, "offer": action.offer.key})
    await add_job_event(connection, job.job_id, told, now_ms=now_ms)


async def _release(connection: Connection, context: ControlContext, action: Release, *, now_ms: int) -> None:
    if await held_gpus(connection, action.node_id):
        raise MovedOnError(f"{action.node_id} holds a run")
    if not await release_node(connection, context.ids, action.node_id, action.reason, now_ms=now_ms):
        raise MovedOnError(f"{action.node_id} is on its way out already")


async def _placeable(connection: Connection, job_id: str) -> PlacedJob:
    job = await job_to_place(connection, job_id)
    if job is None or job.state not in PLACEABLE_JOB_STATES:
        raise MovedOnError(f"{job_id} does not wait for a place")
    merge = await open_merge_of(connection, job_id)
    if merge is not None and not merge.leads(job_id):
        raise MovedOnError(f"{job_id} is trained with {merge.lead_id}, or after it")
    return job
