"""Open a checkpoint's manifest: its pieces are pinned, and the agent learns which of them to upload."""

from __future__ import annotations

from allpass.wire.agent import CheckpointOpen, CheckpointOpened
from app.core.model.checkpoint import CheckpointState, check_saved
from app.db.agents import NodeIdentity
from app.db.checkpoints import CheckpointRow, add_checkpoint, find_same, note_stored
from app.db.coming import came_of
from app.db.engine import Database
from app.db.fences import hold_fence
from app.db.objects import claim_objects
from app.errors import InvalidInput
from app.ports.clock import IdSource
from app.ports.objects import ObjectStore
from app.services.find_pieces import find_missing, sizes_of_pieces
from app.services.saved_files import saved_files
from app.services.sign_transfers import signed_puts
from app.storage.manifests import Manifest, manifest_sha256


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
    files = saved_files(request.files)
    check_saved(files)
    sizes = sizes_of_pieces(files)
    total_bytes = sum(file.size_bytes for file in files)
    if total_bytes >= 2**63:
        raise InvalidInput(f"the files add up to {total_bytes} bytes; no checkpoint is that large", param="files")
    digest = manifest_sha256(Manifest(request.job_id, request.epoch, request.step, files))
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
    if row.state is CheckpointState.COMMITTED:
        return CheckpointOpened(checkpoint_id=row.checkpoint_id, urls={})
    missing = await find_missing(database, objects, writer.project_id, sizes, now_ms=now_ms)
    async with database.statement() as connection:
        came_bytes = await came_of(connection, row.run_id)  # while it was written
        await note_stored(connection, row.checkpoint_id, came_bytes + sum(sizes[sha256] for sha256 in missing))
    urls = signed_puts(objects, writer.project_id, sizes, missing, expires_ms=now_ms + ttl_s * 1000)
    return CheckpointOpened(checkpoint_id=row.checkpoint_id, urls=urls)
