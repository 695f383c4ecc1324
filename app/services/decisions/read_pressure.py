"""What the control loop saw and chose lately, told to one project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.db.connection import Connection
from app.db.decisions.reads import DecisionRow, newest_decisions, of_project

_NAMES = ("job_id", "for_job_id", "node_id")


async def read_pressure(connection: Connection, project_id: str, limit: int) -> list[tuple[DecisionRow, list[str]]]:
    """Decisions, newest first, each with the reasons of its actions on the project's own jobs and nodes."""
    return await told_to(connection, project_id, await newest_decisions(connection, limit))


async def told_to(
    connection: Connection, project_id: str, rows: Sequence[DecisionRow]
) -> list[tuple[DecisionRow, list[str]]]:
    """The same, of these decisions."""
    named = {row_id for row in rows for action in row.actions for row_id in _ids(action)}
    own = await of_project(connection, project_id, sorted(named))
    return [(row, [str(action["reason"]) for action in row.actions if own.intersection(_ids(action))]) for row in rows]


def _ids(action: Mapping[str, Any]) -> list[str]:
    return [str(action[name]) for name in _NAMES if action.get(name)]
