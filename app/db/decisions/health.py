"""How the parts of the control loop are doing, as their leader keeps it and every process tells it."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import case, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.health import PartHealth, PartKind
from app.db.tables import MS, part_health


async def set_health(
    connection: AsyncConnection, kind: PartKind, name: str, *, failures: int, now_ms: int, due_ms: int | None = None
) -> None:
    """A part has finished, with so many failures: 0 says that it works. `due_ms`: when it has to have finished again,
    of a part that runs on a timetable."""
    row = part_health.c
    failed = failures > 0
    since_ms = now_ms if failed else None
    fresh = insert(part_health).values(
        kind=kind, name=name, failures=failures, in_a_row=failures, failing_since_ms=since_ms, due_ms=due_ms
    )
    now_failing = func.coalesce(row.failing_since_ms, literal(now_ms, MS))
    await connection.execute(
        fresh.on_conflict_do_update(
            index_elements=[row.kind, row.name],
            set_={
                "failures": row.failures + failures,
                "in_a_row": case((literal(failed), row.in_a_row + failures), else_=0),
                "failing_since_ms": now_failing if failed else None,
                "due_ms": due_ms,
            },
        )
    )


async def count_failures(connection: AsyncConnection, kind: PartKind, name: str, count: int) -> None:
    """Count what failed of a part that is not told as failing by itself."""
    row = part_health.c
    fresh = insert(part_health).values(kind=kind, name=name, failures=count)
    await connection.execute(
        fresh.on_conflict_do_update(
            index_elements=[row.kind, row.name], set_={"failures": row.failures + fresh.excluded.failures}
        )
    )


async def set_due(connection: AsyncConnection, kind: PartKind, due_ms: Mapping[str, int]) -> None:
    """These parts are due then, at the earliest: somebody new has begun with them."""
    row = part_health.c
    for name, at_ms in sorted(due_ms.items()):
        mine = (row.kind == kind) & (row.name == name)
        await connection.execute(part_health.update().where(mine).values(due_ms=func.greatest(row.due_ms, at_ms)))


async def read_health(connection: AsyncConnection) -> list[PartHealth]:
    """Every part of which anything is known, by kind and name."""
    rows = await connection.execute(select(part_health).order_by(part_health.c.kind, part_health.c.name))
    kinds = {kind.value: kind for kind in PartKind}  # a newer release may know more
    return [
        PartHealth(kinds[row.kind], row.name, row.failures, row.in_a_row, row.failing_since_ms, row.due_ms)
        for row in rows
        if row.kind in kinds
    ]
