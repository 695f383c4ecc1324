"""What the object store is known to hold for a project: content whose bytes were verified there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import objects


async def known_sizes(connection: AsyncConnection, project_id: str, sha256s: Iterable[str]) -> dict[str, int]:
    """The sizes in bytes of those of `sha256s` that are verified as stored."""
    rows = await connection.execute(
        select(objects.c.sha256, objects.c.size_bytes).where(
            objects.c.project_id == project_id, objects.c.sha256.in_(sorted(set(sha256s)))
        )
    )
    return {row.sha256: row.size_bytes for row in rows.all()}


async def record_verified(
    connection: AsyncConnection, project_id: str, sizes: Mapping[str, int], *, now_ms: int
) -> None:
    """Note content (sha256 -> size in bytes) that was found in the store. Noting it twice is harmless."""
    if not sizes:
        return
    rows = [
        {"project_id": project_id, "sha256": sha256, "size_bytes": size, "verified_ms": now_ms}
        for sha256, size in sorted(sizes.items())
    ]
    await connection.execute(insert(objects).on_conflict_do_nothing(), rows)


async def forget_objects(connection: AsyncConnection, project_id: str, sha256s: Iterable[str]) -> None:
    """Take back that these are stored: they were looked for and not found."""
    await connection.execute(
        delete(objects).where(objects.c.project_id == project_id, objects.c.sha256.in_(sorted(set(sha256s))))
    )
