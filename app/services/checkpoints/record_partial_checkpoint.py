"""Take in what is known of a checkpoint that is still being written: its pieces may travel before it is complete.

Nothing of this can be resumed from. What counts is the manifest, which is opened and committed when all is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from allpass.wire.agent import CheckpointComing, UploadReply
from allpass.wire.agent import ComingSpan as WireSpan
from app.core.model.checkpoint import FileEntry, check_entries
from app.core.model.move import MoveState
from app.db.checkpoints.objects import claim_objects, known_objects
from app.db.checkpoints.partial import MOST_BYTES, ComingSpan, add_partial, add_spans, coming_of, new_spans, set_arrived
from app.db.connection import Connection
from app.db.engine import Database
from app.db.fences import hold_fence
from app.db.moves.planned_moves import open_move_of_run
from app.db.nodes.agents import NodeIdentity
from app.db.transitions import bump_desired
from app.errors import InvalidInput
from app.ports.clock import IdSource
from app.ports.objects import ObjectStore
from app.services.checkpoints.find_pieces import find_missing, sizes_by_hash
from app.services.checkpoints.sign_transfers import signed_puts


async def record_partial_checkpoint(
    database: Database,
    objects: ObjectStore,
    ids: IdSource,
    node: NodeIdentity,
    request: CheckpointComing,
    *,
    now_ms: int,
    ttl_s: int,
) -> UploadReply:
    """Sign URLs for what the store lacks. What it has is pinned, and the target of the job's move is told.

    Saying the same again is harmless. Raises InvalidInput for parts that no file could have, Fenced for a run that is
    over, Unavailable while one of the pieces is being deleted.
    """
    _check(request.spans)
    sizes = sizes_by_hash(FileEntry(span.path, span.sha256, span.size_bytes) for span in request.spans)
    async with database.transaction() as connection:
        writer = await hold_fence(connection, node.node_id, request.job_id, request.epoch, run_id=request.run_id)
    async with database.statement() as connection:
        known = await known_objects(connection, writer.project_id, sizes, now_ms=now_ms)
    missing = await find_missing(database, objects, writer.project_id, sizes, now_ms=now_ms)
    lacking = set(missing)
    stored = [_row(span) for span in request.spans if span.sha256 not in lacking]
    async with database.transaction() as connection:
        writer = await hold_fence(
            connection, node.node_id, request.job_id, request.epoch, run_id=request.run_id, exclusive=True
        )
        checkpoint_id = await coming_of(connection, writer.run_id)
        if checkpoint_id is None:
            checkpoint_id = ids.new("ckpt")
            await add_partial(connection, checkpoint_id, writer, request.step, now_ms=now_ms)
        new = await new_spans(connection, checkpoint_id, stored)
        if new:
            contents = {span.sha256 for span in new}
            await claim_objects(connection, writer.project_id, contents, now_ms=now_ms)
            await add_spans(connection, checkpoint_id, new)
            came = sum(sizes[sha256] for sha256 in contents - known.sizes.keys())
            await set_arrived(connection, checkpoint_id, came)
            await _tell_target(connection, writer.run_id)
    urls = signed_puts(objects, writer.project_id, sizes, missing, expires_ms=now_ms + ttl_s * 1000)
    return UploadReply(urls=urls)


async def _tell_target(connection: Connection, run_id: str) -> None:
    move = await open_move_of_run(connection, run_id)
    if move is not None and move.state is MoveState.SAVING and run_id == move.source_run_id:
        await bump_desired(connection, move.target_node_id)


def _check(spans: Sequence[WireSpan]) -> None:
    """Raises InvalidInput naming a part that no file could have."""
    for index, span in enumerate(spans):
        try:
            check_entries((FileEntry(span.path, span.sha256, span.size_bytes),))
        except InvalidInput as error:
            raise InvalidInput(error.message, param=f"spans[{index}].path") from None
        if span.offset + span.length > span.file_bytes or span.file_bytes >= MOST_BYTES:
            raise InvalidInput(
                f"bytes {span.offset} to {span.offset + span.length} are not in a file of {span.file_bytes}",
                param=f"spans[{index}].length",
            )
        if span.start + span.length > span.size_bytes:
            raise InvalidInput(
                f"bytes {span.start} to {span.start + span.length} are not in a piece of {span.size_bytes}",
                param=f"spans[{index}].size_bytes",
            )


def _row(span: WireSpan) -> ComingSpan:
    return ComingSpan(span.path, span.file_bytes, span.offset, span.sha256, span.size_bytes, span.start, span.length)
