"""Actions that fail, as nothing should: dropped, counted in a row, tried again after a growing while.

The third time in a row that a job cannot be placed, it is held: paused, for the reason `internal_error`. What runs is
never stopped because something planned for it failed: it runs on where it is, and the next try comes later and later.
A node that cannot be released is tried again for ever: it costs money. Where very many jobs fail at once, none of them
is to blame, and none is held: they are tried again by themselves (ADR 0034).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from app.control.context import ControlContext
from app.control.dropping import Dropped
from app.control.each import each
from app.core.model.health import Chore, PartKind
from app.core.model.job import PLACEABLE_JOB_STATES, PauseReason
from app.core.model.plan import ActionKind, Enactable, Provision, Release
from app.db.connection import Connection
from app.db.decisions.item_failures import FailureKey, ItemFailure, add_failure, delete_failures
from app.db.jobs.steering import lock_standing
from app.db.transitions import Event, add_job_event, add_node_event
from app.errors import InvariantBroken
from app.services.jobs.hold_job import hold_job

HELD_AFTER = 3  # failures in a row
MOST_HELD = 10  # where more jobs than that fail at once, none of them is to blame
AnyAction = TypeVar("AnyAction", bound=Enactable)

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS


class Effort(StrEnum):
    """What an action is good for: failures in a row are counted of each by itself."""

    PLACE = "place"
    MOVE = "move"
    MERGE = "merge"
    RELEASE = "release"


EFFORTS: Mapping[ActionKind, Effort] = {
    ActionKind.START: Effort.PLACE,
    ActionKind.ASSIGN: Effort.PLACE,
    ActionKind.PROVISION: Effort.PLACE,
    ActionKind.DEMOTE: Effort.MOVE,
    ActionKind.MIGRATE: Effort.MOVE,
    ActionKind.PREEMPT: Effort.MOVE,
    ActionKind.RESIZE: Effort.MOVE,
    ActionKind.MERGE: Effort.MERGE,
    ActionKind.SPLIT: Effort.MERGE,
    ActionKind.RELEASE: Effort.RELEASE,
}
# By failures in a row; the last one is for all that follow.
RESTS_MS: Mapping[int, int] = {1: 1_000, 2: 2_000} | {3 + n: min(_MINUTE_MS << n, _HOUR_MS) for n in range(7)}
_RELEASE_RESTS_MS = {1: 1_000, 2: 2_000, 3: 10_000, 4: 30_000, 5: _MINUTE_MS, 6: 5 * _MINUTE_MS}


def failure_key(action: Enactable) -> FailureKey:
    """Whose failure it is, and of what."""
    if isinstance(action, Release):
        return action.node_id, EFFORTS[action.kind]
    return action.for_job_id if isinstance(action, Provision) else action.job_id, EFFORTS[action.kind]


def due(actions: Sequence[AnyAction], failures: Mapping[FailureKey, ItemFailure], now_ms: int) -> list[AnyAction]:
    """The actions without those that rest."""
    if not failures:
        return list(actions)
    tried = (failures.get(failure_key(action)) for action in actions)
    return [
        action
        for action, before in zip(actions, tried, strict=True)
        if before is None or before.not_before_ms <= now_ms
    ]


async def note_outcomes(
    context: ControlContext,
    actions: Sequence[Enactable],
    dropped: Sequence[Dropped],
    failures: Mapping[FailureKey, ItemFailure],
) -> None:
    """After actions were tried: each that failed is told and counted, and each that succeeded is forgotten."""
    if failures:
        not_done = {failure_key(one.action) for one in dropped}
        done = {failure_key(action) for action in actions} - not_done
        if done & failures.keys():
            async with context.led() as connection:
                await delete_failures(connection, done & failures.keys())
    failed = [one for one in dropped if one.error is not None]
    if not failed:
        return
    await context.health.count(PartKind.ACTION, Counter(one.action.kind for one in failed))
    many = too_many(failures, {failure_key(one.action) for one in failed}, context.clock.now_ms())
    for one in failed:
        key = failure_key(one.action)
        assert one.error is not None
        context.health.tell(f"action {one.action.kind}", key[0], one.error)
        rests_ms = _RELEASE_RESTS_MS if key[1] == Effort.RELEASE else RESTS_MS
        may_hold = key[1] == Effort.PLACE and not many
        await note_failure(context, key, _event_of(one), rests_ms=rests_ms, may_hold=may_hold)


def too_many(failures: Mapping[FailureKey, ItemFailure], now: set[FailureKey], now_ms: int) -> bool:
    """Whether so many jobs have failed within the hour that it is not them who are to blame."""
    lately = {key[0] for key, one in failures.items() if one.last_ms > now_ms - _HOUR_MS}
    jobs = {row_id for row_id in lately | {key[0] for key in now} if row_id.startswith("job_")}
    return len(jobs) > MOST_HELD


async def note_failure(
    context: ControlContext,
    key: FailureKey,
    event_of: Callable[[int], Event | None],
    *,
    rests_ms: Mapping[int, int] | None = None,
    may_hold: bool = False,
) -> None:
    """Count it, tell it, and hold the job when it was too often. In transactions of their own: what makes something
    fail may make it fail to tell of it."""
    row_id, what = key

    async def count(connection: Connection, _key: FailureKey) -> int:
        return await add_failure(connection, row_id, what, now_ms=context.clock.now_ms(), rest_ms=rests_ms)

    async def tell(connection: Connection, event: Event) -> None:
        add = add_node_event if row_id.startswith("node_") else add_job_event
        await add(connection, row_id, event, now_ms=context.clock.now_ms())

    async def held(connection: Connection, job_id: str) -> None:
        await _hold(connection, context, job_id)

    counted = await each(context, Chore.TELL, [key], count)
    in_a_row = counted[0] if counted else 1
    event = event_of(in_a_row)
    if event is not None and row_id.startswith(("job_", "node_")):
        await each(context, Chore.TELL, [event], tell, named=lambda _event: row_id)
    if may_hold and in_a_row >= HELD_AFTER and row_id.startswith("job_"):
        await each(context, Chore.TELL, [row_id], held)


async def _hold(connection: Connection, context: ControlContext, job_id: str) -> None:
    """Pause a job that has no run. One that has, or was asked to pause, stays as it is."""
    job = await lock_standing(connection, job_id)
    if job is not None and job.state in PLACEABLE_JOB_STATES:
        await hold_job(connection, context.ids, job, PauseReason.INTERNAL_ERROR, now_ms=context.clock.now_ms())


def _event_of(one: Dropped) -> Callable[[int], Event]:
    kind = one.action.kind
    refused = isinstance(one.error, InvariantBroken)

    def event(in_a_row: int) -> Event:
        times = "" if in_a_row == 1 else f" {in_a_row} times in a row"
        what = f"was refused{times} ({one.why})" if refused else f"failed{times}"
        message = f"{kind} {what}: an error of the service; nothing of it was done, and it is tried again"
        told = "action_refused" if refused else "action_failed"
        return Event(told, message, {"action": kind, "in_a_row": in_a_row})

    return event
