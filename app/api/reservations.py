"""Reserving GPUs of pools for a window."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from allpass.wire import reservations as wire
from allpass.wire.base import Page
from app.api.audit import Write, audited
from app.api.auth import Reader, Submitter
from app.api.context import ApiContext, context_of
from app.api.cursors import cursor_text, text_cursor, wrong_cursor
from app.api.errors import documented
from app.api.once import answer_once
from app.api.requests import Cursor, IdempotencyHeader, Limit, ReservationId, at_ms, known_id
from app.api.views import instant, instant_or_none, page
from app.core.model.ids import is_id
from app.services.access.authenticate import Caller
from app.services.access.create_key import OWNER
from app.services.reservations.reserve import end_reservation, reserve
from app.services.reservations.show import ShownReservation, list_reservations, show_reservation

router = APIRouter(prefix="/v1/reservations", tags=["pools"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
_WRITE = documented(401, 403, 404, 409, 413, 422, 503)
_HOUR_MS = 3_600_000


@router.post(
    "",
    operation_id="reserve",
    summary="Reserve GPUs of a pool",
    status_code=201,
    response_model=wire.Reservation,
    responses=_WRITE,
)
async def ask(
    body: wire.ReservationRequest,
    request: Request,
    caller: Submitter,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Within the window, guaranteed jobs of other projects do not begin on them. Spot jobs use them while they are
    idle, and leave when a guaranteed job of the project wants them. Guaranteed jobs that are on them as it begins go
    on.

    A conflict as `not_reservable` where the pool does not have so many, less what others have reserved at any moment of
    that window and what quotas promise.
    """
    now_ms = context.clock.now_ms()

    async def act(write: Write) -> wire.Reservation:
        row = await reserve(
            write.connection,
            context.ids,
            caller.project_id,
            pool=body.pool,
            gpu_type=body.gpu_type,
            gpus=body.gpus,
            from_ms=None if body.begins_at is None else at_ms(body.begins_at),
            until_ms=at_ms(body.ends_at),
            now_ms=now_ms,
        )
        write.object_id = row.reservation_id
        return reservation_view(
            await show_reservation(write.connection, caller.project_id, row.reservation_id, now_ms=now_ms), now_ms
        )

    return await answer_once(context, request, act, status=201)


@router.get("", operation_id="list_reservations", summary="List reservations", responses=documented(401, 403, 422, 503))
async def list_(
    caller: Reader, context: ContextOf, cursor: Cursor = None, limit: Limit = 100
) -> Page[wire.Reservation]:
    """Of the project, newest first."""
    after, now_ms = _after(cursor), context.clock.now_ms()
    async with context.database.transaction() as connection:
        found = await list_reservations(connection, caller.project_id, after=after, limit=limit + 1, now_ms=now_ms)
    return page(found, limit, lambda one: reservation_view(one, now_ms), _cursor)


@router.get(
    "/{reservation_id}",
    operation_id="get_reservation",
    summary="Show a reservation",
    responses=documented(401, 403, 404, 422, 503),
)
async def get(reservation_id: ReservationId, caller: Reader, context: ContextOf) -> wire.Reservation:
    """Those of other projects are shown to owners of the installation alone."""
    known_id(reservation_id, "resv", "reservation")
    now_ms = context.clock.now_ms()
    async with context.database.transaction() as connection:
        return reservation_view(
            await show_reservation(connection, _scope(caller), reservation_id, now_ms=now_ms), now_ms
        )


@router.delete("/{reservation_id}", operation_id="end_reservation", summary="End a reservation", responses=_WRITE)
async def end(
    reservation_id: ReservationId, request: Request, caller: Submitter, context: ContextOf
) -> wire.Reservation:
    """Nothing is kept for it from now on; nobody has to leave. One that is over stays as it is. Owners of the
    installation end those of any project."""
    known_id(reservation_id, "resv", "reservation")
    now_ms = context.clock.now_ms()
    async with audited(context, request, reservation_id) as write:
        await end_reservation(write.connection, _scope(caller), reservation_id, now_ms=now_ms)
        return reservation_view(
            await show_reservation(write.connection, _scope(caller), reservation_id, now_ms=now_ms), now_ms
        )


def reservation_view(shown: ShownReservation, now_ms: int) -> wire.Reservation:
    """As it is at `now_ms`."""
    row, of, use = shown.row, shown.row.reservation, shown.use
    return wire.Reservation(
        id=row.reservation_id,
        pool=of.pool,
        gpu_type=of.gpu_type,
        gpus=of.gpus,
        state=_state(shown, now_ms),
        created_at=instant(row.created_ms),
        begins_at=instant(of.from_ms),
        ends_at=instant(of.until_ms),
        kept_gpus=use.kept,
        own_gpus=use.own,
        spot_gpus=use.spot,
        others_gpus=use.others,
        kept_gpu_hours=round(shown.kept_ms / _HOUR_MS, 6),
        ended_at=instant_or_none(row.ended_ms),
        why=row.ended_why or shown.lacks,
    )


def _state(shown: ShownReservation, now_ms: int) -> wire.ReservationState:
    row, of = shown.row, shown.row.reservation
    if row.ended_ms is not None or of.until_ms <= now_ms:
        return "over"
    if of.from_ms > now_ms:
        return "planned"
    return "short" if shown.lacks else "open"


def _scope(caller: Caller) -> str | None:
    return None if OWNER in caller.scopes else caller.project_id


def _cursor(shown: ShownReservation) -> str:
    return text_cursor(f"{shown.row.created_ms} {shown.row.reservation_id}")


def _after(cursor: str | None) -> tuple[int, str] | None:
    text = cursor_text(cursor)
    if cursor is None or text is None:
        return None
    created, _, reservation_id = text.partition(" ")
    if not (created.isascii() and created.isdigit() and len(created) < 16 and is_id(reservation_id, "resv")):
        raise wrong_cursor(cursor)
    return int(created), reservation_id
