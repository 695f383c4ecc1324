"""Reservations as they are now: what is kept for them, and who uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.calendar import written
from app.core.explaining.facts import Remark
from app.core.model.job import PriorityClass
from app.core.reserving import FOREVER_MS
from app.db.connection import Connection
from app.db.reservations.kept_gpus import KeptUse, kept_time_ms, kept_uses, reserved_at
from app.db.reservations.reservations import ReservationRow, find_reservation, open_of_project, reservations_of
from app.services.reservations.reserve import no_such


@dataclass(frozen=True, slots=True)
class ShownReservation:
    """`kept_ms`: for how long GPUs were kept for it, added up."""

    row: ReservationRow
    use: KeptUse
    kept_ms: int

    @property
    def lacks(self) -> str | None:
        """What is amiss, in words; None: nothing."""
        row, told = self.row, []
        if row.short_gpus:
            of = row.reservation
            told.append(
                f"{of.pool} lacks {row.short_gpus} of its {of.gpus} {of.gpu_type}: hosts have left, or are silent"
            )
        if row.blocked_gpus:
            told.append(
                f"{row.blocked_gpus} are used by others' guaranteed jobs or processes, which began before and go on; "
                "they are its own when these end"
            )
        return "; ".join(told) or None


async def show_reservation(
    connection: Connection, project_id: str | None, reservation_id: str, *, now_ms: int
) -> ShownReservation:
    """`project_id` None: of any project. Raises NotFound."""
    row = await find_reservation(connection, reservation_id)
    if row is None or project_id not in (None, row.reservation.project_id) or row.reservation.piece is not None:
        raise no_such(reservation_id)
    (shown,) = await _shown(connection, [row], now_ms=now_ms)
    return shown


async def list_reservations(
    connection: Connection, project_id: str, *, after: tuple[int, str] | None, limit: int, now_ms: int
) -> list[ShownReservation]:
    """Of a project, newest first."""
    rows = await reservations_of(connection, project_id, after=after, limit=limit)
    return await _shown(connection, rows, now_ms=now_ms)


async def explain_reservation(
    connection: Connection, project_id: str, priority_class: str, node_id: str | None, *, waits: bool, now_ms: int
) -> list[Remark]:
    """What reservations have to do with where a job is; nothing for most. A guaranteed job that waits: what its project
    has reserved; one that runs on what others have reserved: that it goes on, or has to leave."""
    is_spot = priority_class == PriorityClass.SPOT
    if waits and not is_spot:
        rows = await open_of_project(connection, project_id, now_ms=now_ms)
        return [_waits(shown) for shown in await _shown(connection, rows, now_ms=now_ms)]
    if node_id is None:
        return []
    others = [one for one in await reserved_at(connection, node_id) if one.project_id != project_id or is_spot]
    return [_uses(one.gpus, one.until_ms, is_spot) for one in others]


def _waits(shown: ShownReservation) -> Remark:
    of, use = shown.row.reservation, shown.use
    free = max(0, min(use.kept, of.gpus - shown.row.short_gpus) - use.own - use.spot - use.others)
    what = f"has reserved {of.gpus} x {of.gpu_type} of {of.pool} until {written(of.until_ms)}"
    if of.piece is not None:
        what = (
            f"is sure of {of.gpus // of.piece} hosts of {of.pool} with {of.piece} x {of.gpu_type} each, {of.gpus} GPUs"
        )
    text = (
        f"its project {what}: {free} of them are free, {use.own} are used by its own jobs, and {use.spot} by spot "
        "jobs, which leave for it"
    )
    text += f"; {shown.lacks}" if shown.lacks else ""
    data = {
        "reservation_id": of.reservation_id,
        "reserved_gpus": of.gpus,
        "free_gpus": free,
        "own_gpus": use.own,
        "spot_gpus": use.spot,
        "others_gpus": use.others,
        "until_ms": of.until_ms,
    }
    return Remark(text, data)


def _uses(gpus: int, until_ms: int, is_spot: bool) -> Remark:
    """Whose they are is nobody's business."""
    count = f"{gpus} GPUs of its machine are" if gpus != 1 else "a GPU of its machine is"
    is_quota = until_ms >= FOREVER_MS
    what = f"{count} of a project's quota of hosts" if is_quota else f"{count} reserved until {written(until_ms)}"
    if is_spot:
        whom = "that project" if is_quota else "who has reserved them"
        then = f"when {whom} needs them, it saves, leaves and waits for another place"
    elif is_quota:
        then = "it began before, and leaves when that project needs them, unless its own is sure of them too"
    else:
        then = "it began before and is not made to leave"
    return Remark(f"{what}: {then}", {"reserved_gpus": gpus, "until_ms": until_ms})


async def _shown(connection: Connection, rows: Sequence[ReservationRow], *, now_ms: int) -> list[ShownReservation]:
    open_now = [row for row in rows if row.ended_ms is None]
    uses = await kept_uses(connection, [(row.reservation_id, row.reservation.project_id) for row in open_now])
    times = await kept_time_ms(connection, [row.reservation_id for row in rows], now_ms=now_ms)
    return [
        ShownReservation(row, uses.get(row.reservation_id, KeptUse()), times.get(row.reservation_id, 0)) for row in rows
    ]
