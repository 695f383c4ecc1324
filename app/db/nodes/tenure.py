"""Small questions about one node."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import nodes


async def node_provider(connection: AsyncConnection, node_id: str) -> str:
    """The name of the provider it is rented from."""
    provider: str = (await connection.execute(select(nodes.c.provider).where(nodes.c.id == node_id))).scalar_one()
    return provider


async def offer_key_of(connection: AsyncConnection, node_id: str) -> str | None:
    """The offer that it was rented from, as jobs note those that failed them."""
    row = (await connection.execute(select(nodes.c.provider, nodes.c.offer).where(nodes.c.id == node_id))).one()
    offer_id = row.offer.get("offer_id")
    return None if offer_id is None else f"{row.provider}/{offer_id}"


async def clear_token(connection: AsyncConnection, node_id: str) -> None:
    """Its agent is not let in any more."""
    await connection.execute(update(nodes).where(nodes.c.id == node_id).values(token_sha256=None))
