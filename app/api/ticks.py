"""Decisions of the control loop, one by one, and taken again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from allpass.wire.base import Instant, Page
from allpass.wire.pressure import Decision
from allpass.wire.ticks import ChangedWait, HiddenActions, PlannedAction, Replay, ReplayRequest
from app.api.audit import Write
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import number_cursor
from app.api.errors import documented
from app.api.example_ids import example_id
from app.api.once import answer_once, first_answer
from app.api.pressure import decision_view
from app.api.requests import Cursor, IdempotencyHeader, Limit
from app.api.views import instant
from app.core.model.plan import Action
from app.core.replaying import concerns, named_ids
from app.db.decisions.reads import newest_decisions, of_project
from app.db.decisions.recorded_ticks import RecordedTick, read_recorded_tick
from app.errors import NotFound
from app.services.decisions.policy_settings import policy_config
from app.services.decisions.read_pressure import told_to
from app.services.decisions.replay_tick import ReplayedTick, replay_tick

router = APIRouter(prefix="/v1/ticks", tags=["nodes"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
TickId = Annotated[int, Path(ge=1, le=2**53, description="Number of the decision", examples=[4711])]


@router.get("", operation_id="list_ticks", summary="List decisions", responses=documented(401, 403, 404, 422, 503))
async def list_ticks(
    caller: Reader,
    context: ContextOf,
    job_id: Annotated[
        str | None, Query(max_length=64, description="With an action on this job", examples=[example_id("job")])
    ] = None,
    until: Annotated[
        Instant | None, Query(description="Taken at this moment or before", examples=["2026-11-21T00:22:16Z"])
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Page[Decision]:
    """Newest first. Reasons are told of the caller's own jobs and nodes only.

    Decisions are kept for `ALLPASS_TICKS_KEEP_DAYS` days, as long as they take less than `ALLPASS_TICKS_KEEP_BYTES`.
    """
    async with context.database.transaction() as connection:
        if job_id is not None and not await of_project(connection, caller.project_id, [job_id]):
            raise NotFound(f"there is no job {job_id}", param="job_id")
        rows = await newest_decisions(
            connection,
            limit + 1,
            below=number_cursor(cursor),
            until_ms=None if until is None else round(until.timestamp() * 1000),
            named_id=job_id,
        )
        told = await told_to(connection, caller.project_id, rows[:limit])
    more = str(rows[limit - 1].number) if len(rows) > limit else None
    return Page[Decision](data=[decision_view(row, reasons) for row, reasons in told], next_cursor=more)


@router.get(
    "/{tick_id}", operation_id="get_tick", summary="Get a decision", responses=documented(401, 403, 404, 422, 503)
)
async def get_tick(tick_id: TickId, caller: Reader, context: ContextOf) -> Decision:
    """What the control loop saw and chose."""
    async with context.database.transaction() as connection:
        found = await told_to(connection, caller.project_id, await newest_decisions(connection, 1, number=tick_id))
    if not found:
        raise _no_such(tick_id)
    return decision_view(*found[0])


@router.post(
    "/{tick_id}/replay",
    operation_id="replay_tick",
    summary="Take a decision again",
    response_model=Replay,
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def replay(
    tick_id: TickId,
    body: ReplayRequest,
    request: Request,
    caller: Reader,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Decide again on what was seen then: as it was, with another policy, or with other rules. Nothing is enacted.

    Told are the actions that are planned in both cases, only then, and only now; and which jobs are told something else
    why they wait.
    """
    first = await first_answer(context, request)
    if first is not None:
        return first
    async with context.database.transaction() as connection:
        tick = await read_recorded_tick(connection, tick_id)
    if tick is None:
        raise _no_such(tick_id)
    config = policy_config(context.settings)
    async with request.app.state.planning:
        done = await asyncio.to_thread(replay_tick, tick, config, policy=body.policy, rules=body.rules)
    found = done.replay
    named = named_ids([*found.both, *found.only_then, *found.only_now]) | set(found.waits)
    async with context.database.transaction() as connection:
        own = await of_project(connection, caller.project_id, sorted(named))

    async def act(write: Write) -> Replay:
        return _view(tick, done, own)

    return await answer_once(context, request, act)


def _view(tick: RecordedTick, done: ReplayedTick, own: set[str]) -> Replay:
    found = done.replay
    told = {name: _own(getattr(found, name), own) for name in ("both", "only_then", "only_now")}
    waits = [
        ChangedWait(job_id=job_id, then=then, now=now) for job_id, (then, now) in found.waits.items() if job_id in own
    ]
    hidden = {name: len(getattr(found, name)) - len(actions) for name, actions in told.items()}
    return Replay(
        id=tick.number,
        at=instant(tick.at_ms),
        policy_then=tick.policy,
        policy_now=done.policy,
        same=found.is_same,
        caveat=done.caveat,
        **told,
        waits=waits,
        unchanged_waits=found.unchanged_waits,
        others=HiddenActions(**hidden, waits=len(found.waits) - len(waits)),
        signals_then=dict(found.signals_then),
        signals_now=dict(found.signals_now),
    )


def _own(actions: Sequence[Action], own: set[str]) -> list[PlannedAction]:
    return [_action(action) for action in actions if concerns(action, own)]


def _action(action: Action) -> PlannedAction:
    offer = getattr(action, "offer", None)
    return PlannedAction(
        kind=action.kind,
        job_id=getattr(action, "job_id", None) or getattr(action, "for_job_id", None),
        node_id=getattr(action, "node_id", None),
        offer=None if offer is None else offer.key,
        price_per_hour=None if offer is None else offer.price_per_hour.micros,
        reason=action.reason,
    )


def _no_such(tick_id: int) -> NotFound:
    return NotFound(f"there is no tick {tick_id}, or it is not kept any more: see GET /v1/ticks", param="tick_id")
