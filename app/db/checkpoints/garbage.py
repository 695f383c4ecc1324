"""Content that nothing refers to any more, on its way out of the object store.

In two steps, so that no database transaction waits for the store. First, in one transaction, content that nothing
refers to leaves `objects` for `condemned_objects`. Then it is deleted, and forgotten. Whoever writes a reference claims
the content in the same transaction (`claim_objects` in `objects.py`): the row lock puts the two in an order, so either
the collector sees the reference, or the writer sees that it came too late.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, any_, delete, exists, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import CheckpointState
from app.db.arrays import insert_rows, is_one_of
from app.db.checkpoints.objects import KEPT_MS
from app.db.tables import (
    app_versions,
    artifacts,
    checkpoint_files,
    checkpoint_listings,
    checkpoint_part_pieces,
    checkpoint_pieces,
    checkpoints,
    condemned_objects,
    log_chunks,
    objects,
    projects,
)

_REFERRING = (CheckpointState.COMING, CheckpointState.OPEN, CheckpointState.COMMITTED)


async def condemn_unreferenced(connection: AsyncConnection, project_id: str, *, now_ms: int, most: int) -> int:
    """Condemn content of the project that nothing refers to and nobody asked for in `KEPT_MS`; how much it was."""
    found = (
        select(objects.c.sha256)
        .where(objects.c.project_id == project_id, objects.c.verified_ms < now_ms - KEPT_MS, *_unreferenced())
        .order_by(objects.c.sha256)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    # Locked first, looked at again then: a reference that was written before the lock was had is seen.
    locked = list((await connection.execute(found)).scalars())
    if not locked:
        return 0
    gone = await connection.execute(
        delete(objects)
        .where(objects.c.project_id == project_id, is_one_of(objects.c.sha256, locked), *_unreferenced())
        .returning(objects.c.sha256)
    )
    return await _condemn(connection, project_id, list(gone.scalars()), now_ms=now_ms)


async def condemn_damaged(connection: AsyncConnection, project_id: str, sha256: str, *, now_ms: int) -> None:
    """Condemn content whose stored bytes are wrong, whatever refers to it."""
    await connection.execute(delete(objects).where(objects.c.project_id == project_id, objects.c.sha256 == sha256))
    await _condemn(connection, project_id, [sha256], now_ms=now_ms)


async def lease_condemned(
    connection: AsyncConnection, project_id: str, *, now_ms: int, until_ms: int, most: int
) -> list[str]:
    """Condemned content that nobody else deletes now, to delete before `until_ms`.

    A deletion that comes late could hit the same content stored anew, so only one at a time may try.
    """
    of = condemned_objects.c
    free = (
        select(of.sha256)
        .where(of.project_id == project_id, of.leased_until_ms < now_ms)
        .order_by(of.sha256)
        .limit(most)
        .with_for_update(skip_locked=True)
    )
    rows = await connection.execute(
        update(condemned_objects)
        .where(of.project_id == project_id, of.sha256 == any_(free.scalar_subquery()))
        .values(leased_until_ms=until_ms)
        .returning(of.sha256)
    )
    return sorted(rows.scalars())


async def delete_condemned_rows(
    connection: AsyncConnection, project_id: str, sha256s: Sequence[str], *, until_ms: int
) -> None:
    """They are deleted, under the lease that ends at `until_ms`: from now on they may be stored again."""
    of = condemned_objects.c
    await connection.execute(
        update(projects).where(projects.c.id == project_id).values(deletions=projects.c.deletions + 1)
    )
    await connection.execute(
        delete(condemned_objects).where(
            of.project_id == project_id, is_one_of(of.sha256, sha256s), of.leased_until_ms == until_ms
        )
    )


async def count_deletions(connection: AsyncConnection, project_id: str, *, hold: bool = False) -> int:
    """A number that grows whenever content of the project was deleted. `hold`: not until this transaction has ended.

    What was seen in the store while it stood, and is not condemned, is there still.
    """
    counted = select(projects.c.deletions).where(projects.c.id == project_id)
    rows = await connection.execute(counted.with_for_update(read=True) if hold else counted)
    number: int = rows.scalar_one()
    return number


async def known_of(connection: AsyncConnection, project_id: str, sha256s: Sequence[str]) -> set[str]:
    """Those of `sha256s` that are noted as stored, or condemned."""
    found: set[str] = set()
    for table in (objects, condemned_objects):
        statement = select(table.c.sha256).where(table.c.project_id == project_id, is_one_of(table.c.sha256, sha256s))
        found |= set((await connection.execute(statement)).scalars())
    return found


async def all_projects(connection: AsyncConnection) -> list[str]:
    return list((await connection.execute(select(projects.c.id).order_by(projects.c.id))).scalars())


async def delete_files(connection: AsyncConnection, *, before_ms: int, most: int) -> int:
    """Drop the file lists of checkpoints that will never be used again; the checkpoints' own rows stay."""
    useless = (
        select(checkpoint_files.c.checkpoint_id)
        .join(checkpoints, checkpoints.c.id == checkpoint_files.c.checkpoint_id)
        .where(checkpoints.c.state.not_in(_REFERRING), checkpoints.c.opened_ms < before_ms)
        .distinct()
        .limit(most)
    )
    ids = list((await connection.execute(useless)).scalars())
    if ids:
        await connection.execute(delete(checkpoint_files).where(is_one_of(checkpoint_files.c.checkpoint_id, ids)))
        await connection.execute(delete(checkpoint_listings).where(is_one_of(checkpoint_listings.c.checkpoint_id, ids)))
    return len(ids)


async def _condemn(connection: AsyncConnection, project_id: str, sha256s: list[str], *, now_ms: int) -> int:
    if sha256s:
        rows = [{"project_id": project_id, "sha256": sha256, "condemned_ms": now_ms} for sha256 in sha256s]
        await connection.execute(insert_rows(condemned_objects, rows).on_conflict_do_nothing())
    return len(sha256s)


def _unreferenced() -> list[ColumnElement[bool]]:
    """Of any project: a hash that two projects share is kept by either, which is never wrong."""
    sha256 = objects.c.sha256
    held = exists().where(
        checkpoint_pieces.c.sha256 == sha256,
        checkpoints.c.id == checkpoint_pieces.c.checkpoint_id,
        checkpoints.c.state.in_(_REFERRING),
    )
    return [
        ~held,
        ~exists().where(checkpoint_part_pieces.c.sha256 == sha256),
        ~exists().where(artifacts.c.sha256 == sha256),
        ~exists().where(log_chunks.c.sha256 == sha256),
        ~exists().where(app_versions.c.bundle_sha256 == sha256),
    ]
