"""What the object store is known to hold for a project: content whose bytes were verified there.

Content that nothing refers to is collected (`garbage.py`), but never within `FRESH_MS` of the last time somebody asked
for it: who asks is about to refer to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import delete, null, select, union_all, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.arrays import insert_rows, is_one_of
from app.db.tables import condemned_objects, objects
from app.errors import Unavailable

FRESH_MS = 30 * 60_000
KEPT_MS = 2 * FRESH_MS  # what was not asked for in this time, and is referred to by nothing, may be collected


@dataclass(frozen=True, slots=True)
class Known:
    """`sizes` in bytes of what is verified as stored. `stale`: what of it was not asked for in a while."""

    sizes: dict[str, int]
    stale: tuple[str, ...]


async def known_objects(connection: AsyncConnection, project_id: str, sha256s: Iterable[str], *, now_ms: int) -> Known:
    """What is known of `sha256s`. Raises Unavailable while one of them is being deleted."""
    wanted = sorted(set(sha256s))
    of, gone = objects.c, condemned_objects.c
    rows = await connection.execute(
        union_all(
            select(of.sha256, of.size_bytes, of.verified_ms).where(
                of.project_id == project_id, is_one_of(of.sha256, wanted)
            ),
            select(gone.sha256, null(), null()).where(gone.project_id == project_id, is_one_of(gone.sha256, wanted)),
        )
    )
    sizes: dict[str, int] = {}
    stale = []
    for sha256, size_bytes, verified_ms in rows.all():
        if size_bytes is None:
            raise being_deleted(sha256)
        sizes[sha256] = size_bytes
        if verified_ms < now_ms - FRESH_MS:
            stale.append(sha256)
    return Known(sizes, tuple(stale))


async def claim_objects(connection: AsyncConnection, project_id: str, sha256s: Iterable[str], *, now_ms: int) -> None:
    """Keep known content from being collected for `FRESH_MS` at least, and until this transaction has ended.

    Whoever writes a reference in this transaction is sure of it: the collector either sees the reference, or this
    sees the collector. Raises Unavailable while one of them is being deleted.
    """
    wanted = sorted(set(sha256s))
    mine = (objects.c.project_id == project_id) & is_one_of(objects.c.sha256, wanted)
    # In one order, whoever asks: two that claim the same content never wait for each other in a circle.
    held = select(objects.c.sha256).where(mine).order_by(objects.c.sha256).with_for_update().cte("held")
    await connection.execute(
        update(objects)
        .where(objects.c.project_id == project_id, objects.c.sha256 == held.c.sha256)
        .values(verified_ms=now_ms)
    )
    of = condemned_objects.c
    condemned = select(of.sha256).where(of.project_id == project_id, is_one_of(of.sha256, wanted)).limit(1)
    found = (await connection.execute(condemned)).scalar_one_or_none()
    if found is not None:
        raise being_deleted(found)


async def add_verified(connection: AsyncConnection, project_id: str, sizes: Mapping[str, int], *, now_ms: int) -> None:
    """Note content (sha256 -> size in bytes) that was found in the store. Noting it twice is harmless."""
    if not sizes:
        return
    rows = [
        {"project_id": project_id, "sha256": sha256, "size_bytes": size, "verified_ms": now_ms}
        for sha256, size in sorted(sizes.items())
    ]
    await connection.execute(insert_rows(objects, rows).on_conflict_do_nothing())


async def delete_objects(connection: AsyncConnection, project_id: str, sha256s: Iterable[str]) -> None:
    """Take back that these are stored: they were looked for and not found."""
    await connection.execute(
        delete(objects).where(objects.c.project_id == project_id, is_one_of(objects.c.sha256, sorted(set(sha256s))))
    )


def being_deleted(sha256: str) -> Unavailable:
    """The error for whoever wants to refer to content that is on its way out."""
    return Unavailable(f"content {sha256} is being deleted, since nothing referred to it; try again, then upload it")
