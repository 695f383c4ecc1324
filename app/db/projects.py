"""Projects: the tenants."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import projects
from app.ports.clock import Clock, IdSource


async def ensure_project(connection: AsyncConnection, name: str, *, clock: Clock, ids: IdSource) -> str:
    """The id of the project of this name, made if there is none yet."""
    new = insert(projects).values(id=ids.new("proj"), name=name, created_ms=clock.now_ms())
    await connection.execute(new.on_conflict_do_nothing(index_elements=["name"]))
    found: str = (await connection.execute(select(projects.c.id).where(projects.c.name == name))).scalar_one()
    return found
