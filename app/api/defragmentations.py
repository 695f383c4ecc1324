"""Nodes are vacated by moves: owners ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from allpass.wire import defragmentations as wire
from app.api.audit import Write
from app.api.auth import Owner
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.once import answer_once, first_answer
from app.api.requests import DefragmentationId, IdempotencyHeader, known_id
from app.api.views import instant, instant_or_none
from app.core.defragmentation import Goal, PlannedRelease, SwitchRepair
from app.db.defragmentation.defragmentations import DefragRow, held_of, repairs_of
from app.services.defragmentation.ask_defragmentation import (
    ask_defragmentation,
    call_off_defragmentation,
    plan_defragmentation,
)
from app.services.defragmentation.show import (
    ShownDefragmentation,
    found_of,
    show_defragmentation,
    show_defragmentations,
)

router = APIRouter(prefix="/v1/defragmentations", tags=["pools"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
_SHOWN = 100


@router.post(
    "",
    operation_id="create_defragmentation",
    summary="Vacate nodes by moves",
    status_code=201,
    response_model=wire.Defragmentation,
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def create(
    body: wire.DefragmentationRequest,
    request: Request,
    caller: Owner,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Jobs of half-used nodes move together, a few at a time and each without losing a step, so that whole nodes are
    free or their rent ends; those on several machines come together under fewer switches. With `dry_run` the answer is
    the plan, and nothing is done; else it is planned and carried out soon. A conflict while another one of the goal is
    under way, and where jobs are moved by stop-and-go."""
    goal, now_ms = Goal(body.goal), context.clock.now_ms()
    planned = None
    if body.dry_run:  # before anything is locked: it reads the whole fleet
        answered = await first_answer(context, request)
        if answered is not None:
            return answered
        plan = await plan_defragmentation(
            context.database, context.settings, goal, body.pool, body.max_moves, now_ms=now_ms
        )
        planned = _planned(body, found_of(plan), plan.releases)

    async def act(write: Write) -> wire.Defragmentation:
        if planned is not None:
            return planned
        row = await ask_defragmentation(
            write.connection, context.ids, context.settings, goal, body.pool, body.max_moves, now_ms=now_ms
        )
        write.object_id = row.id
        return _view(ShownDefragmentation(row, [], {}))

    return await answer_once(context, request, act, status=201)


@router.get(
    "",
    operation_id="list_defragmentations",
    summary="List defragmentations",
    responses=documented(401, 403, 422, 503),
)
async def list_(caller: Owner, context: ContextOf) -> wire.Defragmentations:
    """Those of 30 days, newest first; at most 100."""
    async with context.database.transaction() as connection:
        shown = await show_defragmentations(connection, before=None, limit=_SHOWN)
    return wire.Defragmentations(items=[_view(one) for one in shown])


@router.get(
    "/{defragmentation_id}",
    operation_id="get_defragmentation",
    summary="Show a defragmentation",
    responses=documented(401, 403, 404, 422, 503),
)
async def get(defragmentation_id: DefragmentationId, caller: Owner, context: ContextOf) -> wire.Defragmentation:
    """What was planned, and what has come of it."""
    known_id(defragmentation_id, "dfrg", "defragmentation")
    async with context.database.transaction() as connection:
        return _view(await show_defragmentation(connection, defragmentation_id))


@router.post(
    "/{defragmentation_id}/cancel",
    operation_id="cancel_defragmentation",
    summary="Call a defragmentation off",
    response_model=wire.Defragmentation,
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def cancel(
    defragmentation_id: DefragmentationId,
    request: Request,
    caller: Owner,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """No more of its moves begin; those that are under way end as moves do. One that is over stays as it is."""
    known_id(defragmentation_id, "dfrg", "defragmentation")
    now_ms = context.clock.now_ms()

    async def act(write: Write) -> wire.Defragmentation:
        await call_off_defragmentation(write.connection, defragmentation_id, now_ms=now_ms)
        return _view(await show_defragmentation(write.connection, defragmentation_id))

    return await answer_once(context, request, act, object_id=defragmentation_id)


def _planned(
    body: wire.DefragmentationRequest, found: Mapping[str, Any], releases: Sequence[PlannedRelease]
) -> wire.Defragmentation:
    return wire.Defragmentation(
        goal=body.goal,
        pool=body.pool,
        state="planned",
        max_moves=body.max_moves,
        releases=[_release(one, found, {}, None) for one in releases],
        **_counts(found),
    )


def _view(shown: ShownDefragmentation) -> wire.Defragmentation:
    row: DefragRow = shown.row
    return wire.Defragmentation(
        id=row.id,
        goal=row.goal.value,
        pool=row.pool,
        state=row.state,
        begun_by=row.begun_by,
        max_moves=row.most_moves,
        releases=[_release(one.release, row.found, shown.pauses, one.end_message) for one in shown.releases],
        asked_at=instant(row.asked_ms),
        planned_at=instant_or_none(row.planned_ms),
        ended_at=instant_or_none(row.ended_ms),
        message=row.end_message,
        **_counts(row.found),
    )


def _counts(found: Mapping[str, Any]) -> dict[str, Any]:
    names: Mapping[str, str] = found.get("names") or {}
    return {
        **{name: found.get(name) for name in ("nodes", "occupied", "least", "settled")},
        "left_alone": found.get("left_alone") or {},
        "held": {job_id: [names.get(one, one) for one in its] for job_id, its in held_of(found).items()},
        "repairs": [_repair(one, names) for one in repairs_of(found)],
    }


def _repair(repair: SwitchRepair, names: Mapping[str, str]) -> wire.DefragRepair:
    return wire.DefragRepair(
        job_id=repair.job_id,
        state=repair.state.value,
        machines=repair.machines,
        gpus=repair.gpus,
        here=repair.here,
        there=repair.there,
        entropy=repair.spread,
        entropy_there=repair.spread_there,
        hosts=[names.get(place, place) for place in repair.places],
        pause_s=repair.pause_ms / 1000,
        gain_s=None if repair.gain_ms is None else repair.gain_ms / 1000,
        why=repair.why or None,
    )


def _release(
    release: PlannedRelease, found: Mapping[str, Any], pauses: Mapping[str, int], why: str | None
) -> wire.DefragRelease:
    names: Mapping[str, str] = found.get("names") or {}
    measured = [step.gpus * pauses[move] for step in release.steps if (move := step.move_id or "") in pauses]
    return wire.DefragRelease(
        node=release.name,
        gpus=release.gpus,
        state=release.state.value,
        reason=release.reason,
        saves=max(0, release.saved_micros),
        costs=max(0, release.cost_micros),
        pause_s=release.pause_ms / 1000,
        paused_s=sum(measured) / 1000 if measured else None,
        for_job_id=release.for_job_id,
        steps=[
            wire.DefragStep(
                job_id=step.job_id,
                source=names.get(step.source, step.source),
                target=names.get(step.target, step.target),
                gpus=step.gpus,
                state=step.state.value,
                why=step.why or None,
            )
            for step in release.steps
        ],
        why=why,
    )
