"""Which rows have changed since somebody looked: what triggers write down of every transaction, whoever made it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import changed_rows

# Who has not looked for so long reads everything. What is deleted is older.
_FORGOTTEN_AFTER_S = 900

_NOW = text("""
    SELECT pg_snapshot_xmin(s)::text::bigint AS first_open, pg_snapshot_xmax(s)::text::bigint AS first_to_come,
        s::text AS seen, extract(epoch FROM clock_timestamp())::float8 AS at_s
    FROM pg_current_snapshot() AS s
""")
_NEWS = text("""
    SELECT EXISTS (
        SELECT FROM changed_rows
        WHERE versioned AND xid >= pg_snapshot_xmin(CAST(CAST(:seen AS text) AS pg_snapshot))::text::bigint
            AND xid < pg_snapshot_xmax(pg_current_snapshot())::text::bigint
            AND NOT pg_visible_in_snapshot(xid::text::xid8, CAST(CAST(:seen AS text) AS pg_snapshot))
    )
""")

_DELETE = text("""
    DELETE FROM changed_rows WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM changed_rows WHERE at < now() - interval '1 hour' LIMIT :most
    ))
""")


@dataclass(frozen=True, slots=True)
class Looked:
    """A moment of the database. What transactions from `first_open` on have written may not have been seen then; what
    one from `first_to_come` on has written was not."""

    first_open: int
    first_to_come: int
    seen: str
    at_s: float


async def look(connection: AsyncConnection) -> Looked:
    """The moment of this transaction. In one that does not see a single moment, that of this statement."""
    row = (await connection.execute(_NOW)).one()
    return Looked(row.first_open, row.first_to_come, row.seen, row.at_s)


async def rows_changed(connection: AsyncConnection, since: Looked, now: Looked) -> Mapping[str, frozenset[str]] | None:
    """By table, the ids of rows that have changed since, and of some that have not. None: nobody knows them any more,
    since it is long ago, or was in another database than this one is now."""
    if now.at_s - since.at_s > _FORGOTTEN_AFTER_S or since.first_to_come > now.first_to_come:
        return None
    row = changed_rows.c
    # What a restored database says of transactions that are to come was written in another one.
    which = (row.xid >= since.first_open, row.xid < now.first_to_come)
    found = await connection.execute(select(row.of_table, row.row_id).where(*which).distinct())
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for of_table, row_id in found:
        ids[of_table].add(row_id)
    return {of_table: frozenset(changed) for of_table, changed in ids.items()}


async def has_news(connection: AsyncConnection, since: Looked) -> bool:
    """Whether anything that a decision depends on was written that could not be seen then."""
    return bool((await connection.execute(_NEWS, {"seen": since.seen})).scalar_one())


async def delete_seen(connection: AsyncConnection, *, most: int) -> int:
    """Delete at most so many of those that everybody has looked at, or has given up to ask for; returns how many."""
    return (await connection.execute(_DELETE, {"most": most})).rowcount
