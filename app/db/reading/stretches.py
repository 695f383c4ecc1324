"""Long series of metrics, looked at in stretches, so that a million points take little longer than some."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ARRAY, BigInteger, TextClause, bindparam, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import metric_points

_EDGES = ("froms", "tos")


@dataclass(frozen=True, slots=True)
class Stretches:
    """Steps cut into parts of equal width: of each the first (`froms`) and the one behind its last (`tos`)."""

    froms: list[int]
    tos: list[int]


async def has_more_than(connection: AsyncConnection, job_id: str, after: int, most: int) -> bool:
    """Whether there are more points with a step above `after`; counts no further."""
    beyond = select(literal(1)).where(metric_points.c.job_id == job_id, metric_points.c.step > after)
    row = await connection.execute(beyond.order_by(metric_points.c.step).offset(most).limit(1))
    return row.first() is not None


async def stretches_of(connection: AsyncConnection, job_id: str, after: int, count: int) -> Stretches:
    """All steps above `after` that were measured, in at most `count` parts; none where there is none."""
    step = metric_points.c.step
    measured = select(step).where(metric_points.c.job_id == job_id, step > after).limit(1)
    low = await connection.scalar(measured.order_by(step))
    high = await connection.scalar(measured.order_by(step.desc()))
    if low is None or high is None:
        return Stretches([], [])
    width = high - low + 1
    count = min(count, width)
    edges = [low + width * number // count for number in range(count + 1)]
    return Stretches(edges[:-1], edges[1:])


def with_stretches(statement: TextClause) -> TextClause:
    """A statement that names `:froms` and `:tos`."""
    return statement.bindparams(*(bindparam(name, type_=ARRAY(BigInteger)) for name in _EDGES))
