"""Small questions about one node."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import nodes


async def node_provider(connection: AsyncConnection, node_id: str) -> str:
    """The name of the provider it is rented from."""
    provider: str = (await connection.execute(select(nodes.c.provider).where(nodes.c.id == node_id))).scalar_one()
    return provider


async def forget_token(connection: AsyncConnection, node_id: str) -> None:
    """Its agent is not let in any more."""
    await connection.execute(update(nodes).where(nodes.c.id == node_id).values(token_sha256=None))
