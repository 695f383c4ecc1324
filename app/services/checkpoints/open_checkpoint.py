"""Open a checkpoint's manifest: its pieces are pinned, and the agent learns which of them to upload."""

from __future__ import annotations

import asyncio
import base64
from typing import NamedTuple

from allpass.wire.agent import CheckpointOpen, CheckpointOpened
from app.core.model.checkpoint import CheckpointState, SavedFile, check_saved
from app.core.model.listing import MAX_LISTING_BYTES, stream_of, unpack
from app.db.checkpoints.listings import add_listing
from app.db.checkpoints.manifests import CheckpointRow, add_checkpoint, find_same, set_stored
from app.db.checkpoints.objects import claim_objects
from app.db.checkpoints.partial import came_of
from app.db.engine import Database
from app.db.fences import hold_fence
from app.db.nodes.agents import NodeIdentity
from app.errors import InvalidInput
from app.ports.clock import IdSource
from app.ports.objects import ObjectStore
from app.services.checkpoints.find_pieces import find_missing, sizes_of_pieces
from app.services.checkpoints.saved_files import saved_files
from app.services.checkpoints.sign_transfers import signed_puts
from app.storage.manifests import Manifest, listed_sha256, manifest_sha256


async def open_checkpoint(
    database: Database,
    objects: ObjectStore,
    ids: IdSource,
    node: NodeIdentity,
    request: CheckpointOpen,
    *,
    now_ms: int,
    ttl_s: int,
) -> CheckpointOpened:
    """Write the open manifest under the job's current epoch, and sign URLs for what the store lacks.

    Asking again for the same step and content gives the same checkpoint, so a lost reply costs nothing. Raises
    InvalidInput for entries that no checkpoint may hold, Fenced for a run that is over, Unavailable while one of its
    pieces is being deleted.
    """
    told = await asyncio.to_thread(_told, request)
    files = told.files
    sizes = sizes_of_pieces(files)
    total_bytes = sum(file.size_bytes for file in files)
    if total_bytes >= 2**63:
        raise InvalidInput(f"the files add up to {total_bytes} bytes; no checkpoint is that large", param="files")
    digest = told.digest
    async with database.transaction() as connection:
        # Exclusive, so that two of the same requests at once open one manifest.
        writer = await hold_fence(
            connection, node.node_id, request.job_id, request.epoch, run_id=request.run_id, exclusive=True
        )
        row = await find_same(connection, request.job_id, request.epoch, request.step, digest)
        if row is None:
            row = CheckpointRow(
                checkpoint_id=ids.new("ckpt"),
                project_id=writer.project_id,
                job_id=request.job_id,
                run_id=writer.run_id,
                epoch=request.epoch,
                step=request.step,
                state=CheckpointState.OPEN,
                manifest_sha256=digest,
                size_bytes=total_bytes,
            )
            await claim_objects(connection, writer.project_id, sizes, now_ms=now_ms)
            await add_checkpoint(connection, row, files, request.metrics, now_ms=now_ms)
            if told.listing is not None:
                await add_listing(connection, row.checkpoint_id, told.listing, told.file_count)
    if row.state is CheckpointState.COMMITTED:
        return CheckpointOpened(checkpoint_id=row.checkpoint_id, urls={})
    missing = await find_missing(database, objects, writer.project_id, sizes, now_ms=now_ms)
    async with database.statement() as connection:
        came_bytes = await came_of(connection, row.run_id)  # while it was written
        await set_stored(connection, row.checkpoint_id, came_bytes + sum(sizes[sha256] for sha256 in missing))
    urls = signed_puts(objects, writer.project_id, sizes, missing, expires_ms=now_ms + ttl_s * 1000)
    return CheckpointOpened(checkpoint_id=row.checkpoint_id, urls=urls)


class _Told(NamedTuple):
    """What the request says, checked."""

    files: tuple[SavedFile, ...]
    digest: str
    listing: bytes | None = None
    file_count: int = 0


def _told(request: CheckpointOpen) -> _Told:
    """In a thread of its own: there may be very many files. Raises InvalidInput."""
    who = request.job_id, request.epoch, request.step
    if request.listing is None:
        if not request.files:
            raise InvalidInput("a checkpoint has at least one file", param="files")
        files = saved_files(request.files)
        check_saved(files)
        return _Told(files, manifest_sha256(Manifest(*who, files)))
    if request.files:
        raise InvalidInput("give the files of a checkpoint, or a listing of all of them", param="files")
    try:
        listing = base64.b64decode(request.listing.files, validate=True)
    except ValueError:
        raise InvalidInput("not base64", param="listing.files") from None
    if len(listing) > MAX_LISTING_BYTES:
        raise InvalidInput(
            f"the list of its files has {len(listing)} bytes when it is packed, and at most {MAX_LISTING_BYTES} can be "
            "kept: pack files together, or give them shorter names",
            param="listing.files",
        )
    listed = unpack(listing)
    stream = stream_of(listed, [(piece.sha256, piece.size_bytes) for piece in request.listing.pieces])
    return _Told((stream,), listed_sha256(*who, listing, stream), listing, len(listed))
