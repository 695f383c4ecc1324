"""Commit a checkpoint: the one moment from which it may be resumed from."""

from __future__ import annotations

from allpass.wire.agent import CheckpointCommit
from app.core.model.checkpoint import CheckpointState
from app.db.agents import NodeIdentity
from app.db.checkpoints import CheckpointRow, files_of, get_checkpoint, mark_committed
from app.db.engine import Database
from app.db.fences import hold_fence
from app.db.handles import Connection
from app.db.transitions import Event, add_job_event
from app.errors import Conflict, NotFound
from app.ports.objects import ObjectStore
from app.services.find_pieces import find_missing, sizes_by_hash


async def commit_checkpoint(
    database: Database,
    objects: ObjectStore,
    node: NodeIdentity,
    checkpoint_id: str,
    request: CheckpointCommit,
    *,
    now_ms: int,
) -> None:
    """Take an open manifest to committed once every piece is in the store with its right size.

    The store is asked about every piece, known or not. The epoch is checked before and again, under lock, in the
    transaction that commits. Repeating it is harmless. Raises Conflict when pieces are missing or the manifest was
    given up, Fenced for a run that is over, NotFound.
    """
    async with database.transaction() as connection:
        row = await _held(connection, node, checkpoint_id, request, exclusive=False)
        files = await files_of(connection, checkpoint_id)
    if row.state is CheckpointState.COMMITTED:
        return
    missing = await find_missing(
        database, objects, row.project_id, sizes_by_hash(files), now_ms=now_ms, look_again=True
    )
    if missing:
        raise Conflict(
            f"{len(missing)} of the {len(files)} files of {checkpoint_id} are not stored, first {missing[0]}; "
            "open it again for their upload URLs",
        )
    async with database.transaction() as connection:
        row = await _held(connection, node, checkpoint_id, request, exclusive=True)
        if await mark_committed(connection, row, now_ms=now_ms):
            await add_job_event(connection, row.job_id, _committed(row), now_ms=now_ms)


async def _held(
    connection: Connection, node: NodeIdentity, checkpoint_id: str, request: CheckpointCommit, *, exclusive: bool
) -> CheckpointRow:
    """The manifest, under the fence of the run that opened it."""
    writer = await hold_fence(connection, node.node_id, request.job_id, request.epoch, exclusive=exclusive)
    row = await get_checkpoint(connection, checkpoint_id)
    if row is None or (row.job_id, row.epoch, row.run_id) != (request.job_id, request.epoch, writer.run_id):
        raise NotFound(f"{request.job_id} has no checkpoint {checkpoint_id} at epoch {request.epoch}")
    if row.state is CheckpointState.ABORTED:
        raise Conflict(f"{checkpoint_id} was given up; open a new one")
    return row


def _committed(row: CheckpointRow) -> Event:
    data = {"checkpoint_id": row.checkpoint_id, "step": row.step, "size_bytes": row.size_bytes, "epoch": row.epoch}
    return Event("checkpoint_committed", f"checkpoint of step {row.step} saved ({row.size_bytes} bytes)", data)
