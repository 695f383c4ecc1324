"""Which jobs of a project have changed since somebody looked, by the list that triggers keep (migration 0034).

Who looks remembers the moment as PostgreSQL names it (a snapshot): which transactions it saw. What others have written
since is found by their numbers, however late they commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

FORGOTTEN_AFTER_S = 900  # rows are deleted after an hour, if nothing that cleans up is late
_MOMENT = re.compile(r"([0-9]{1,12})\.([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18}(?:,[0-9]{1,18})*)?")

_NOW = text("""
    SELECT pg_current_snapshot()::text AS seen, extract(epoch FROM clock_timestamp())::bigint AS at_s
""")
# The newest transaction that wrote something before then. Of those that began before it and write on, nothing is told.
_BEFORE = text("""
    SELECT coalesce((
        SELECT xid FROM changed_rows WHERE at < clock_timestamp() - make_interval(secs => :seconds)
        ORDER BY xid DESC LIMIT 1
    ), 0) + 1 AS xid, extract(epoch FROM clock_timestamp())::bigint AS at_s
""")
_CHANGED = text("""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT of_table, row_id FROM changed_rows
        WHERE xid >= :first AND xid < :beyond AND of_table IN ('jobs', 'runs')
            AND pg_visible_in_snapshot(xid::text::xid8, CAST(CAST(:now AS text) AS pg_snapshot))
            AND NOT pg_visible_in_snapshot(xid::text::xid8, CAST(CAST(:seen AS text) AS pg_snapshot))
    )
    SELECT j.id FROM changed JOIN jobs j ON j.id = changed.row_id
    WHERE changed.of_table = 'jobs' AND j.project_id = :project_id
    UNION
    SELECT j.id FROM changed JOIN run_jobs r ON r.run_id = changed.row_id JOIN jobs j ON j.id = r.job_id
    WHERE changed.of_table = 'runs' AND j.project_id = :project_id
    LIMIT :most
""")


@dataclass(frozen=True, slots=True)
class Moment:
    """When somebody looked (`at_s`), and what could be seen then. Its text goes out to clients and comes back."""

    at_s: int
    first: int
    beyond: int
    seen: str

    def __str__(self) -> str:
        return f"{self.at_s}.{self.seen}"


def parse_moment(written: str) -> Moment | None:
    """The moment of which this is the text; None for what is none."""
    match = _MOMENT.fullmatch(written)
    if match is None:
        return None
    at_s, first, beyond = (int(match[number]) for number in (1, 2, 3))
    between = [int(part) for part in (match[4] or "").split(",") if part]
    in_order = all(one < other for one, other in zip([first - 1, *between], [*between, beyond], strict=True))
    if not 0 < first <= beyond or not in_order:
        return None
    return Moment(at_s, first, beyond, written.partition(".")[2])


async def this_moment(connection: AsyncConnection) -> Moment:
    """What is read after this on the connection is of this moment or later."""
    row = (await connection.execute(_NOW)).one()
    return _moment(row.at_s, row.seen)


async def moment_before(connection: AsyncConnection, seconds: int) -> Moment:
    """About so many seconds ago."""
    row = (await connection.execute(_BEFORE, {"seconds": float(seconds)})).one()
    return _moment(row.at_s, f"{row.xid}:{row.xid}:")


async def jobs_changed(
    connection: AsyncConnection, project_id: str, since: Moment, now: Moment, *, most: int
) -> list[str] | None:
    """Jobs of the project that have changed between the two, `most` of them at most. None: nobody knows, since it
    is long ago or was in another database than this one is now."""
    if now.at_s - since.at_s > FORGOTTEN_AFTER_S or since.beyond > now.beyond:
        return None
    told = {"first": since.first, "beyond": now.beyond, "seen": since.seen, "now": now.seen}
    found = await connection.execute(_CHANGED, told | {"project_id": project_id, "most": most})
    return list(found.scalars())


def _moment(at_s: int, seen: str) -> Moment:
    first, beyond, _ = seen.split(":")
    return Moment(at_s, int(first), int(beyond), seen)
