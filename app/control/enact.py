"""Make a plan true: one transaction in which each action is written whole, or dropped because its rows moved on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.control.begin_move import migrate, move_out
from app.control.context import ControlContext
from app.control.dropping import Dropped, MovedOnError, check_versions, drop_event
from app.control.enact_merge import merge_jobs, split_jobs
from app.control.placing import Placement, place
from app.core.layout import Layout
from app.core.model.job import JobState
from app.core.model.merge import MergeMode
from app.core.model.plan import (
    AssignGang,
    Demote,
    Enactable,
    Merge,
    Migrate,
    MoveOut,
    Preempt,
    Provision,
    Release,
    Split,
)
from app.core.model.run import RunState, StopMode
from app.db.connection import Connection
from app.db.decisions.enactment import attempt, held_gpus, jobs_of_run, node_of_run
from app.db.lock_order import lock_scope
from app.db.merging.merges import merge_versions, open_merge_of
from app.db.runs.layouts import set_layout
from app.db.transitions import Event, add_job_event, add_node_event, bump_desired, move_job, move_run
from app.errors import Fenced, Unavailable
from app.services.moves.advance_move import drop_move
from app.services.moves.ask_to_leave import ask_to_leave
from app.services.nodes.release_node import release_node

log = logging.getLogger(__name__)


async def enact(
    connection: Connection,
    context: ControlContext,
    actions: Sequence[Enactable],
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
    dropped: list[Dropped] = []
    batch: list[Placement] = []
    for action in actions:
        if isinstance(action, Placement):
            batch.append(action)
            continue
        dropped += await place(connection, context, batch, found, layouts or {}, now_ms=now_ms)
        batch = []
        dropped += await _enact_one(connection, context, action, found, layouts or {}, now_ms=now_ms)
    dropped += await place(connection, context, batch, found, layouts or {}, now_ms=now_ms)
    return tuple(dropped)


async def _enact_one(
    connection: Connection,
    context: ControlContext,
    action: Enactable,
    found: Mapping[str, int],
    layouts: Mapping[str, Layout],
    *,
    now_ms: int,
) -> list[Dropped]:
    try:
        check_versions(action, found)
        async with attempt(connection):
            await _carry_out_laid_out(connection, context, action, layouts, now_ms=now_ms)
    except MovedOnError as moved:
        await _tell_dropped(connection, action, str(moved), found, now_ms=now_ms)
        return [Dropped(action, str(moved))]
    except (Fenced, Unavailable):
        raise
    except Exception as error:
        if connection.closed or connection.invalidated:
            raise  # nothing more can be written here
        return [Dropped(action, "it failed", error)]
    return []


async def enact_apart(
    context: ControlContext,
    actions: Sequence[Enactable],
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
    context: ControlContext, actions: Sequence[Enactable], *, now_ms: int, layouts: Mapping[str, Layout] | None
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


def _rows_of(action: Enactable) -> set[str]:
    rows = {row_id for row_id, _version in action.versions}
    for name in ("job_id", "companion_id", "run_id", "node_id", "for_job_id"):
        row_id = getattr(action, name, None)
        if row_id is not None:
            rows.add(row_id)
    if isinstance(action, AssignGang):
        rows |= {place.node_id for place in action.places}
    return rows


async def _tell_dropped(
    connection: Connection, action: Enactable, why: str, found: Mapping[str, int], *, now_ms: int
) -> None:
    event = drop_event(action, why)
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
    action: Enactable,
    layouts: Mapping[str, Layout],
    *,
    now_ms: int,
) -> None:
    """A run that is given GPUs keeps its layout, and the event of its start tells it."""
    if not isinstance(action, Migrate | MoveOut) or action.job_id not in layouts:
        await _carry_out(connection, context, action, now_ms=now_ms)
        return
    layout = layouts[action.job_id]
    told = replace(action, reason=f"{action.reason}; {layout.in_words()}")
    await _carry_out(connection, context, told, now_ms=now_ms)
    await set_layout(connection, told.job_id, layout.as_json())


async def _carry_out(connection: Connection, context: ControlContext, action: Enactable, *, now_ms: int) -> None:
    match action:
        case Demote() | Preempt():
            await _stop(connection, context, action, now_ms=now_ms)
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
        case _:
            raise MovedOnError(f"{action.kind} cannot be enacted here")


async def _stop(connection: Connection, context: ControlContext, action: Demote | Preempt, *, now_ms: int) -> None:
    """Its run saves and leaves, and its job waits again."""
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


async def _release(connection: Connection, context: ControlContext, action: Release, *, now_ms: int) -> None:
    if await held_gpus(connection, action.node_id):
        raise MovedOnError(f"{action.node_id} holds a run")
    if not await release_node(connection, context.ids, action.node_id, action.reason, now_ms=now_ms):
        raise MovedOnError(f"{action.node_id} is on its way out already")
