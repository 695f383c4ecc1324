"""Jobs that stand by, or did, with what that costs and what it does to their deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.calendar import written
from app.core.explaining.facts import Remark
from app.core.model.money import Money
from app.core.spot_share import FULL, at_share
from app.core.standby import StandbyView
from app.db.connection import Connection
from app.db.nodes.lifecycle import nodes_named
from app.db.standby.standbys import StandbyRow, as_seen, lenders_of, open_standby_of, rebates_of, standbys_of

MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class ShownStandby:
    """`used`: GPUs of it that others have now. `paid` and `rebate`: micro-dollars, as far as its meter has been read.
    `hourly`: micro-dollars that its machine costs while it stands by."""

    row: StandbyRow
    used: int
    paid: int
    rebate: int
    hourly: int


async def show_standbys(connection: Connection, job_id: str, *, newest: int = MOST_SHOWN) -> list[ShownStandby]:
    """Of a job, newest first."""
    return await _shown(connection, (await standbys_of(connection, job_id))[:newest])


async def _shown(connection: Connection, rows: Sequence[StandbyRow]) -> list[ShownStandby]:
    seen = {one.standby_id: one for one in await as_seen(connection, [row for row in rows if row.ended_ms is None])}
    money = await rebates_of(connection, rows)
    nodes = await nodes_named(connection, {row.node_id for row in rows})
    found = []
    for row in rows:
        paid, rebate = money.get(row.standby_id, (0, 0))
        node = nodes.get(row.node_id)
        price = 0 if node is None else node.offer.price_per_hour.micros
        found.append(ShownStandby(row, _used(row, seen.get(row.standby_id)), paid, rebate, _less(price, row)))
    return found


async def explain_standby(connection: Connection, job_id: str, node_id: str | None, *, now_ms: int) -> list[Remark]:
    """Why a job's GPUs are lent, or why it is on GPUs that another job has lent; nothing for any other."""
    row = await open_standby_of(connection, job_id)
    if row is not None and row.left_ms is not None:
        (shown,) = await _shown(connection, [row])
        return [_lends(shown, now_ms)]
    lenders = [] if node_id is None else await lenders_of(connection, node_id)
    return [_borrows(lender) for lender in lenders]


def _used(row: StandbyRow, seen: StandbyView | None) -> int:
    return 0 if seen is None or row.left_ms is None else seen.used


def _less(price: int, row: StandbyRow) -> int:
    return at_share(price, min(max(0, FULL - row.rebate_parts), FULL))


def _lends(shown: ShownStandby, now_ms: int) -> Remark:
    row = shown.row
    since = "" if row.left_ms is None else f" since {written(row.left_ms)}"
    gpus = f"{row.gpus} GPU{'s' * (row.gpus != 1)}"
    text = (
        f"its owner lends its {gpus}{since} until {written(row.until_ms)}: spot jobs use {shown.used} of them; "
        f"{Money(shown.hourly)}/h is paid meanwhile, {Money(shown.paid)} so far, and {Money(shown.rebate)} is not"
    )
    called = None if row.called_ms is None else row.called_why
    if called is not None:
        text += f". It is called back: {called}"
    data = {
        "standby_id": row.standby_id,
        "gpus": row.gpus,
        "used_gpus": shown.used,
        "until_ms": row.until_ms,
        "left_ms": row.left_ms,
        "called_ms": row.called_ms,
        "paid_micros": shown.paid,
        "rebate_micros": shown.rebate,
        "hourly_micros": shown.hourly,
        "lent_ms": 0 if row.left_ms is None else max(0, (row.called_ms or now_ms) - row.left_ms),
    }
    return Remark(text, data)


def _borrows(lender: StandbyRow) -> Remark:
    """Whose they are is nobody's business."""
    until = written(lender.until_ms) if lender.called_ms is None else "now"
    text = (
        f"its machine is on GPUs that a guaranteed job lends until {until}: when that one is called back, or "
        "then, it saves, leaves and waits for another place"
    )
    return Remark(text, {"lent_gpus": lender.gpus, "until_ms": lender.until_ms, "called_ms": lender.called_ms})
