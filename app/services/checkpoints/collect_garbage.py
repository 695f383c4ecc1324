"""Delete stored content that nothing refers to: pieces of checkpoints that were let go of, uploads that came to
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from app.db.checkpoints.garbage import (
    all_projects,
    condemn_unreferenced,
    count_deletions,
    delete_condemned_rows,
    delete_files,
    known_of,
    lease_condemned,
)
from app.db.checkpoints.objects import KEPT_MS, add_verified
from app.db.engine import Database
from app.errors import StoreUnavailable
from app.ports.clock import Clock
from app.ports.objects import ObjectStore, content_key, content_prefix
from app.services.checkpoints.find_pieces import look_for

_AT_ONCE = 500
_LEASE_MS = 300_000
_DELETION_S = 60
_MOST_BATCHES = 20  # of one project in one round; what is left is for the next one
_MOST_LOOKS = 3  # at the same strays in one round


async def forget_old_files(database: Database, clock: Clock) -> None:
    """Of checkpoints that were let go of long enough ago: what refers to nothing is collected then."""
    async with database.transaction() as connection:
        await delete_files(connection, before_ms=clock.now_ms() - KEPT_MS, most=_AT_ONCE)


async def projects_with_content(database: Database) -> list[str]:
    """Each is collected by itself."""
    async with database.transaction() as connection:
        return list(await all_projects(connection))


async def collect_garbage(database: Database, objects: ObjectStore, clock: Clock, project_id: str) -> int:
    """One round over a project; how many pieces were condemned. Raises StoreUnavailable: what is condemned then is
    deleted in a later round."""
    now_ms = clock.now_ms()
    total = 0
    for _ in range(_MOST_BATCHES):
        async with database.transaction() as connection:
            count = await condemn_unreferenced(connection, project_id, now_ms=now_ms, most=_AT_ONCE)
        total += count
        await delete_condemned(database, objects, clock, project_id)
        if count < _AT_ONCE:
            break
    return total


async def delete_condemned(database: Database, objects: ObjectStore, clock: Clock, project_id: str) -> None:
    """Delete what is condemned, then let it be stored again. What another process deletes right now is left to it.

    Raises StoreUnavailable: what was not deleted for certain stays condemned, and is deleted later.
    """
    now_ms = clock.now_ms()
    until_ms = now_ms + _LEASE_MS
    async with database.transaction() as connection:
        condemned = await lease_condemned(connection, project_id, now_ms=now_ms, until_ms=until_ms, most=_AT_ONCE)
    deleted: list[str] = []
    try:
        for sha256 in condemned:
            if clock.now_ms() > until_ms - 2 * _DELETION_S * 1000:
                break
            await _delete(objects, content_key(project_id, sha256))
            deleted.append(sha256)
    finally:
        if deleted:
            async with database.transaction() as connection:
                await delete_condemned_rows(connection, project_id, deleted, until_ms=until_ms)


async def _delete(objects: ObjectStore, key: str) -> None:
    try:
        async with asyncio.timeout(_DELETION_S):
            await objects.delete(key)
    except TimeoutError as error:
        raise StoreUnavailable(f"{key} was not deleted within {_DELETION_S} s") from error


async def adopt_strays(database: Database, objects: ObjectStore, clock: Clock, project_id: str) -> int:
    """Note stored content that the database does not know (an upload that was never told): unless something refers to
    it soon, it is collected. Lists all that the store has of the project. Returns how many there were."""
    total = 0
    batch: list[str] = []
    async for info in objects.list(content_prefix(project_id)):
        batch.append(info.sha256)
        if len(batch) >= _AT_ONCE:
            total += await _adopt(database, objects, project_id, batch, now_ms=clock.now_ms())
            batch = []
    return total + await _adopt(database, objects, project_id, batch, now_ms=clock.now_ms())


async def _adopt(
    database: Database, objects: ObjectStore, project_id: str, listed: Sequence[str], *, now_ms: int
) -> int:
    """What was listed may have been deleted since. So the store is asked again for what nobody knows, and the answer
    counts only if nothing was deleted meanwhile."""
    for _ in range(_MOST_LOOKS):
        async with database.transaction() as connection:
            deletions = await count_deletions(connection, project_id)
            known = await known_of(connection, project_id, listed)
        strays = [sha256 for sha256 in listed if sha256 not in known]
        found = await look_for(objects, project_id, strays)
        async with database.transaction() as connection:
            if await count_deletions(connection, project_id, hold=True) == deletions:
                known = await known_of(connection, project_id, strays)
                new = {sha256: size for sha256, size in found.items() if sha256 not in known}
                await add_verified(connection, project_id, new, now_ms=now_ms)
                return len(new)
    return 0  # one deletion follows the other: a later round finds them
