"""Commit a checkpoint: the one moment from which it may be resumed from."""

from __future__ import annotations

from allpass.wire.agent import CheckpointCommit
from allpass.wire.gangs import CheckpointCommitted
from app.core.model.checkpoint import CheckpointState
from app.db.checkpoints.manifests import CheckpointRow, files_of, get_checkpoint, mark_committed
from app.db.checkpoints.parts import get_part
from app.db.connection import Connection
from app.db.engine import Database
from app.db.fences import find_writer, hold_fence
from app.db.lock_order import lock_jobs
from app.db.moves.planned_moves import was_handed_over
from app.db.nodes.agents import NodeIdentity
from app.db.transitions import Event, add_job_event
from app.errors import Conflict, NotFound
from app.ports.objects import ObjectStore
from app.services.checkpoints.commit_part import commit_part
from app.services.checkpoints.find_pieces import find_missing, sizes_of_pieces
from app.services.checkpoints.prune_checkpoints import prune_checkpoints
from app.services.moves.advance_move import hand_over_saved

_DONE = (CheckpointState.PRUNED, CheckpointState.DAMAGED)  # it was committed, and newer ones were since


async def commit_checkpoint(
    database: Database,
    objects: ObjectStore,
    node: NodeIdentity,
    checkpoint_id: str,
    request: CheckpointCommit,
    *,
    keep_last: int,
    now_ms: int,
) -> CheckpointCommitted:
    """Take an open manifest to committed once every piece is in the store with its right size.

    The store is asked about every piece, known or not. The epoch is checked before and again, under lock, in the
    transaction that commits. The final one of the source of a move gives the job to the target in that transaction.
    What the job's rule does not keep then is let go of (`keep_last`: how many of the newest stay where it names no
    number). Repeating it is harmless. Raises Conflict when pieces are missing or the manifest was
    given up, Fenced for a run that is over, NotFound. One that is a part: `commit_part`.
    """
    async with database.transaction() as connection:
        is_part = await get_part(connection, checkpoint_id) is not None
        if not is_part and await _has_handed_over(connection, node, checkpoint_id, request):
            return CheckpointCommitted()
        if not is_part:
            row = await _held(connection, node, checkpoint_id, request, exclusive=False)
            files = await files_of(connection, checkpoint_id)
    if is_part:
        return await commit_part(database, objects, node, checkpoint_id, request, keep_last=keep_last, now_ms=now_ms)
    if row.state in _DONE or (row.state is CheckpointState.COMMITTED and not request.final):
        return CheckpointCommitted()
    missing = await find_missing(
        database, objects, row.project_id, sizes_of_pieces(files), now_ms=now_ms, look_again=True
    )
    if missing:
        raise Conflict(
            f"{len(missing)} of the pieces of {checkpoint_id} are not stored, first {missing[0]}; "
            "open it again for their upload URLs",
        )
    async with database.transaction() as connection:
        if request.final:  # a hand-over locks all that the job reaches
            await lock_jobs(connection, [request.job_id])
        row = await _held(connection, node, checkpoint_id, request, exclusive=True)
        if await mark_committed(connection, row, now_ms=now_ms):
            await add_job_event(connection, row.job_id, _committed(row), now_ms=now_ms)
            await prune_checkpoints(connection, row.job_id, keep_last=keep_last, now_ms=now_ms)
        if request.final:
            await hand_over_saved(connection, row.run_id, now_ms=now_ms)
    return CheckpointCommitted()


async def _has_handed_over(
    connection: Connection, node: NodeIdentity, checkpoint_id: str, request: CheckpointCommit
) -> bool:
    """Whether this very commit was done and gave the job to another run: its answer was lost, and is given again."""
    if not request.final:
        return False
    writer = await find_writer(connection, node.node_id, request.job_id, request.epoch)
    row = await get_checkpoint(connection, checkpoint_id)
    is_done = row is not None and row.run_id == writer.run_id and row.state is CheckpointState.COMMITTED
    return is_done and await was_handed_over(connection, writer.run_id)


async def _held(
    connection: Connection, node: NodeIdentity, checkpoint_id: str, request: CheckpointCommit, *, exclusive: bool
) -> CheckpointRow:
    """The manifest, under the fence of the run that opened it."""
    writer = await hold_fence(connection, node.node_id, request.job_id, request.epoch, exclusive=exclusive)
    row = await get_checkpoint(connection, checkpoint_id)
    if row is None or (row.job_id, row.epoch, row.run_id) != (request.job_id, request.epoch, writer.run_id):
        raise NotFound(f"{request.job_id} has no checkpoint {checkpoint_id} at epoch {request.epoch}")
    if row.state is CheckpointState.COMING:
        raise Conflict(f"{checkpoint_id} is still being written; open its manifest first")
    if row.state is CheckpointState.ABORTED:
        raise Conflict(f"{checkpoint_id} was given up; open a new one")
    return row


def _committed(row: CheckpointRow) -> Event:
    data = {"checkpoint_id": row.checkpoint_id, "step": row.step, "size_bytes": row.size_bytes, "epoch": row.epoch}
    return Event("checkpoint_committed", f"checkpoint of step {row.step} saved ({row.size_bytes} bytes)", data)
