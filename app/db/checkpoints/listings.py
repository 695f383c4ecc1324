"""The paths and sizes of checkpoints of very many files."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import checkpoint_listings


async def add_listing(connection: AsyncConnection, checkpoint_id: str, listing: bytes, file_count: int) -> None:
    await connection.execute(
        checkpoint_listings.insert().values(checkpoint_id=checkpoint_id, listing=listing, file_count=file_count)
    )


async def listing_of(connection: AsyncConnection, checkpoint_id: str) -> bytes | None:
    """None for a checkpoint whose files have rows of their own."""
    found: bytes | None = (
        await connection.execute(
            select(checkpoint_listings.c.listing).where(checkpoint_listings.c.checkpoint_id == checkpoint_id)
        )
    ).scalar_one_or_none()
    return found
