"""Which pieces of content the object store already holds. No database connection is held while the store is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from app.core.model.checkpoint import FileEntry, SavedFile
from app.db.checkpoints.objects import add_verified, claim_objects, delete_objects, known_objects
from app.db.engine import Database
from app.errors import InvalidInput
from app.ports.objects import ObjectStore, content_key

_LOOKS_AT_ONCE = 16


def sizes_by_hash(files: Iterable[FileEntry]) -> dict[str, int]:
    """The distinct contents of `files`. Raises InvalidInput when one hash is given two sizes."""
    return _sizes((index, file.sha256, file.size_bytes) for index, file in enumerate(files))


def sizes_of_pieces(files: Iterable[SavedFile]) -> dict[str, int]:
    """The distinct pieces of `files`. Raises InvalidInput when one hash is given two sizes."""
    return _sizes((index, span.sha256, span.piece_bytes) for index, file in enumerate(files) for span in file.spans)


def _sizes(given: Iterable[tuple[int, str, int]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index, sha256, size_bytes in given:
        if sizes.setdefault(sha256, size_bytes) != size_bytes:
            raise InvalidInput(
                f"{sha256} is given as {sizes[sha256]} and as {size_bytes} bytes", param=f"files[{index}].size_bytes"
            )
    return sizes


async def find_missing(
    database: Database,
    objects: ObjectStore,
    project_id: str,
    sizes: Mapping[str, int],
    *,
    now_ms: int,
    look_again: bool = False,
) -> list[str]:
    """The hashes (sorted) that the store lacks; what is found there is noted as verified.

    `look_again` asks the store about pieces that were noted before too, for a promise that must hold; a piece that
    is gone is forgotten, so that the next request gets an upload URL for it. What is there stays there for a while, so
    that the caller may refer to it. Raises InvalidInput when a stored piece has another size than the one given, and
    Unavailable while one is being deleted.
    """
    async with database.statement() as connection:
        found_known = await known_objects(connection, project_id, sizes, now_ms=now_ms)
    if found_known.stale:
        async with database.transaction() as connection:
            await claim_objects(connection, project_id, found_known.stale, now_ms=now_ms)
            found_known = await known_objects(connection, project_id, sizes, now_ms=now_ms)
    known = found_known.sizes
    _same_sizes(sizes, known)
    unsure = sorted(sizes if look_again else sizes.keys() - known.keys())
    found = await look_for(objects, project_id, unsure)
    _same_sizes(sizes, found)
    new = {sha256: size for sha256, size in found.items() if sha256 not in known}
    lost = [sha256 for sha256 in unsure if sha256 in known and sha256 not in found]
    if new or lost:
        async with database.transaction() as connection:
            await add_verified(connection, project_id, new, now_ms=now_ms)
            await delete_objects(connection, project_id, lost)
    return [sha256 for sha256 in unsure if sha256 not in found]


async def look_for(objects: ObjectStore, project_id: str, sha256s: list[str]) -> dict[str, int]:
    """Those that the store has, with their sizes in bytes. Raises StoreUnavailable."""
    found: dict[str, int] = {}
    queue = iter(sha256s)

    async def look() -> None:
        for sha256 in queue:
            info = await objects.head(content_key(project_id, sha256))
            if info is not None:
                found[sha256] = info.size_bytes

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_LOOKS_AT_ONCE, len(sha256s))):
                group.create_task(look())
    except ExceptionGroup as errors:  # the store is away for all of them alike: tell the first
        raise errors.exceptions[0] from errors
    return found


def _same_sizes(given: Mapping[str, int], stored: Mapping[str, int]) -> None:
    for sha256, size in stored.items():
        if given[sha256] != size:
            raise InvalidInput(
                f"{sha256} is stored with {size} bytes, not {given[sha256]}; give the size of these very bytes",
                param="files",
            )
