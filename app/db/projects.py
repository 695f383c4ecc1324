"""Projects: the tenants, and what each has settled for itself."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Row, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db import notify
from app.db.tables import projects
from app.ports.clock import Clock, IdSource


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """`ahead`: machines are rented ahead, and kept idle, for jobs of the project that are still to come."""

    project_id: str
    name: str
    created_ms: int
    ahead: bool


async def ensure_project(connection: AsyncConnection, name: str, *, clock: Clock, ids: IdSource) -> str:
    """The id of the project of this name, made if there is none yet."""
    new = insert(projects).values(id=ids.new("proj"), name=name, created_ms=clock.now_ms())
    await connection.execute(new.on_conflict_do_nothing(index_elements=["name"]))
    found: str = (await connection.execute(select(projects.c.id).where(projects.c.name == name))).scalar_one()
    return found


async def find_project(connection: AsyncConnection, project_id: str) -> ProjectRow:
    """The project, which is there: keys refer to it."""
    return _row((await connection.execute(select(projects).where(projects.c.id == project_id))).one())


async def change_project(connection: AsyncConnection, project_id: str, *, ahead: bool) -> ProjectRow:
    """Settle whether machines are kept for its jobs to come, and have it decided on at once."""
    changed = update(projects).where(projects.c.id == project_id).values(ahead=ahead).returning(projects)
    row = (await connection.execute(changed)).one()
    await notify.control(connection)
    return _row(row)


async def without_ahead(connection: AsyncConnection) -> tuple[str, ...]:
    """The projects for whose jobs to come nothing is rented or kept, by id."""
    found = await connection.execute(select(projects.c.id).where(~projects.c.ahead).order_by(projects.c.id))
    return tuple(found.scalars())


def _row(row: Row[tuple[object, ...]]) -> ProjectRow:
    return ProjectRow(row.id, row.name, row.created_ms, row.ahead)
