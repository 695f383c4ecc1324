"""Open a checkpoint's manifest: its pieces are pinned, and the agent learns which of them to upload."""

from __future__ import annotations

import asyncio

from allpass.wire.agent import CheckpointOpen, CheckpointOpened
from app.core.model.checkpoint import CheckpointState
from app.db.checkpoints.listings import add_listing
from app.db.checkpoints.manifests import CheckpointRow, add_checkpoint, find_same, set_stored
from app.db.checkpoints.objects import claim_objects
from app.db.checkpoints.partial import came_of
from app.db.engine import Database
from app.db.fences import hold_fence
from app.db.nodes.agents import NodeIdentity
from app.ports.clock import IdSource
from app.ports.objects import ObjectStore
from app.services.checkpoints.find_pieces import find_missing, sizes_of_pieces
from app.services.checkpoints.open_part import open_part
from app.services.checkpoints.sign_transfers import signed_puts
from app.services.checkpoints.told_files import told_files


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
    told = await asyncio.to_thread(told_files, request)
    if request.part:
        return await open_part(database, objects, ids, node, request, told, now_ms=now_ms, ttl_s=ttl_s)
    files = told.files
    sizes = sizes_of_pieces(files)
    total_bytes = sum(file.size_bytes for file in files)
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
