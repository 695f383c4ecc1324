"""Rows on which something fails again and again: counted in a row, over restarts and changes of the leader."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.arrays import as_rows
from app.db.tables import item_failures

_MOST_IN_A_ROW = 1_000_000
FailureKey = tuple[str, str]  # row id, and what fails of it


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """So many failures in a row, and when it is tried again at the earliest."""

    row_id: str
    what: str
    in_a_row: int
    first_ms: int
    last_ms: int
    not_before_ms: int


async def add_failure(
    connection: AsyncConnection, row_id: str, what: str, *, now_ms: int, rest_ms: Mapping[int, int] | None = None
) -> int:
    """Count one more; how many it has been in a row. `rest_ms`: by that number, how long it is not tried again; where
    there is none for it, as for the greatest."""
    row = item_failures.c
    fresh = insert(item_failures).values(row_id=row_id, what=what, in_a_row=1, first_ms=now_ms, last_ms=now_ms)
    counted = fresh.on_conflict_do_update(
        index_elements=[row.row_id, row.what],
        set_={"in_a_row": func.least(row.in_a_row + 1, _MOST_IN_A_ROW), "last_ms": now_ms},
    ).returning(row.in_a_row)
    in_a_row: int = (await connection.execute(counted)).scalar_one()
    if rest_ms:
        rests = rest_ms.get(in_a_row, rest_ms[max(rest_ms)])
        mine = (row.row_id == row_id) & (row.what == what)
        await connection.execute(item_failures.update().where(mine).values(not_before_ms=now_ms + rests))
    return in_a_row


async def failures_now(connection: AsyncConnection) -> dict[FailureKey, ItemFailure]:
    """All that are known."""
    row = item_failures.c
    columns = (row.row_id, row.what, row.in_a_row, row.first_ms, row.last_ms, row.not_before_ms)
    return {(found.row_id, found.what): ItemFailure(*found) for found in await connection.execute(select(*columns))}


async def count_items(connection: AsyncConnection) -> list[tuple[str, int, int]]:
    """(what, how many rows, since when the oldest), for those who operate the service."""
    row = item_failures.c
    rows = await connection.execute(
        select(row.what, func.count(), func.min(row.first_ms)).group_by(row.what).order_by(row.what)
    )
    return [(what, int(count), int(first_ms)) for what, count, first_ms in rows]


async def delete_failures(connection: AsyncConnection, keys: Collection[FailureKey]) -> None:
    """They have succeeded, or are over."""
    if keys:
        row = item_failures.c
        gone = as_rows("gone", (row.row_id, row.what), sorted(keys))
        same = (row.row_id == gone.c.row_id, row.what == gone.c.what)
        await connection.execute(delete(item_failures).where(*same))


async def delete_failures_of(connection: AsyncConnection, row_id: str) -> None:
    """Whatever failed of this row: it begins anew."""
    await connection.execute(delete(item_failures).where(item_failures.c.row_id == row_id))


async def delete_old_failures(connection: AsyncConnection, *, before_ms: int) -> None:
    """What was last tried before that moment is over: what is not tried for a day is not tried again."""
    await connection.execute(delete(item_failures).where(item_failures.c.last_ms < before_ms))
