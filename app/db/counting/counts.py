"""How often what has happened: sums of what is settled, kept, and beside them what has happened since.

What is settled is a while old, so that nothing of that time is still to be committed, and is never read again. So a
count takes as long with a long past as with a short one, is the same for every process, and does not go back.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.counting.series import SOURCES, CountedSeries, Source

_MOST_MS = 100 * 365 * 86_400_000  # a clock that is off must not make a sum that no number holds
_WHENEVER_MS = 2**62


@dataclass(frozen=True, slots=True)
class HappenedRow:
    """`number` times, taking at most `le_s` each and `total_ms` together."""

    series: str
    labels: tuple[str, ...]
    le_s: float
    number: int
    total_ms: int


def _bucket(source: Source) -> str:
    """The smallest bound that is not below `took_ms`: `width_bucket` counts those that it has reached."""
    if source.bounds_s is None:
        return "CAST('Infinity' AS double precision)"
    bounds = ", ".join(f"{bound:g}" for bound in source.bounds_s)
    passed = ", ".join(str(round(bound * 1000) + 1) for bound in source.bounds_s)
    return (
        f"(CAST(ARRAY[{bounds}, 'Infinity'] AS double precision[]))"
        f"[1 + width_bucket(took_ms, CAST(ARRAY[{passed}] AS bigint[]))]"
    )


def _newer(series: CountedSeries, source: Source) -> str:
    """Rows since the series was last settled. Both ends of the time are said, else the planner takes it for much of
    the table, and reads the whole of it."""
    since = f"coalesce((SELECT until_ms FROM counts_until WHERE series = '{series}'), 0)"  # noqa: S608 (as below)
    took = f"least(greatest({source.took_ms}, 0), {_MOST_MS})"
    return f"""
        SELECT '{series}' AS series, labels, {_bucket(source)} AS le_s, number, took_ms FROM (
            SELECT {source.labels} AS labels, CAST({source.number} AS bigint) AS number,
                   CAST({took} AS bigint) AS took_ms
            FROM {source.table} WHERE {source.at_ms} >= {since} AND {source.at_ms} < :before
        ) AS {series}"""  # noqa: S608 (built from constants of this package alone)


_NEWER = " UNION ALL ".join(_newer(series, source) for series, source in SOURCES.items())
_SUMS = f"""
    SELECT series, labels, le_s, CAST(sum(number) AS bigint) AS number, CAST(sum(took_ms) AS bigint) AS total_ms
    FROM ({_NEWER}) AS newer GROUP BY 1, 2, 3"""  # noqa: S608 (as above)
_READ = text(f"SELECT series, labels, le_s, number, total_ms FROM counts UNION ALL {_SUMS}")  # noqa: S608 (as above)
# One statement, and so one snapshot: what moves over is either here or there.
_SETTLE = text(f"""
    WITH added AS (
        INSERT INTO counts AS kept (series, labels, le_s, number, total_ms) {_SUMS} ORDER BY 1, 2, 3
        ON CONFLICT (series, labels, le_s) DO UPDATE
        SET number = kept.number + excluded.number, total_ms = kept.total_ms + excluded.total_ms
    )
    INSERT INTO counts_until AS kept (series, until_ms) SELECT unnest(:series), :before ORDER BY 1
    ON CONFLICT (series) DO UPDATE SET until_ms = greatest(kept.until_ms, excluded.until_ms)
""").bindparams(bindparam("series", list(CountedSeries), type_=ARRAY(TEXT)))  # noqa: S608 (as above)


async def read_counts(connection: AsyncConnection) -> list[HappenedRow]:
    """Everything that is counted; several rows may be of one series, labels and bucket."""
    rows = await connection.execute(_READ, {"before": _WHENEVER_MS})
    return [HappenedRow(row.series, tuple(row.labels), row.le_s, row.number, row.total_ms) for row in rows]


async def settle_counts(connection: AsyncConnection, *, before_ms: int) -> None:
    """Keep the sums of what has happened before that moment. For the leader, in a transaction under its term: two at
    once would count twice."""
    await connection.execute(_SETTLE, {"before": before_ms})
