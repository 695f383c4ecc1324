"""Stored decisions, as operators and users look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.arrays import is_one_of
from app.db.tables import jobs, nodes, ticks


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One tick. `actions` are as they were planned, without the views that they were decided on."""

    number: int
    at_ms: int
    policy: str
    trigger: str
    duration_ms: int
    signals: Mapping[str, float]
    actions: Sequence[Mapping[str, Any]]


async def newest_decisions(
    connection: AsyncConnection,
    limit: int,
    *,
    below: int | None = None,
    until_ms: int | None = None,
    named_id: str | None = None,
    number: int | None = None,
) -> list[DecisionRow]:
    """Newest first: those with a number below `below`, taken until a moment, with an action on that job or node, or the
    one with that number."""
    columns = ticks.c
    query = select(
        columns.id,
        columns.at_ms,
        columns.policy,
        columns.trigger,
        columns.duration_ms,
        columns.plan["signals"].label("signals"),
        columns.plan["actions"].label("actions"),
    )
    if below is not None:
        query = query.where(columns.id < below)
    if until_ms is not None:
        query = query.where(columns.at_ms <= until_ms)
    if named_id is not None:
        query = query.where(columns.named_ids.contains([named_id]))
    if number is not None:
        query = query.where(columns.id == number)
    rows = await connection.execute(query.order_by(columns.id.desc()).limit(limit))
    return [
        DecisionRow(row.id, row.at_ms, row.policy, row.trigger, row.duration_ms, dict(row.signals or ()), row.actions)
        for row in rows
    ]


async def of_project(connection: AsyncConnection, project_id: str, row_ids: Sequence[str]) -> set[str]:
    """Which of these ids are jobs or nodes of the project."""
    found = set()
    for table in (jobs, nodes):
        rows = await connection.execute(
            select(table.c.id).where(is_one_of(table.c.id, row_ids), table.c.project_id == project_id)
        )
        found |= set(rows.scalars())
    return found
