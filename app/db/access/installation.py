"""Which installation this is: the same as long as its database lives, and after a dump of it was restored."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import installations


async def installation_id(connection: AsyncConnection) -> str:
    """Made by the migration that made the table, and never changed."""
    oldest = select(installations.c.id).order_by(installations.c.since_ms, installations.c.id).limit(1)
    found: str = (await connection.execute(oldest)).scalar_one()
    return found
