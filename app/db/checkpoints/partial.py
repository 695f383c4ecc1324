"""Checkpoints that are still being written: what of them is stored already. One per run, in the tables of manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import CheckpointState
from app.core.model.move import MoveState
from app.db.arrays import insert_rows, is_one_of
from app.db.fences import Writer
from app.db.tables import checkpoint_files, checkpoint_pieces, checkpoints, moves

OFFSET_UNIT_BYTES = 4096  # a span's position in its file, in the table
MOST_BYTES = OFFSET_UNIT_BYTES * 2**31  # of a file: its last position still fits there
_MOST_SPANS = 5_000


@dataclass(frozen=True, slots=True)
class ComingSpan:
    """`length_bytes` of a file of `file_bytes`, from `offset_bytes` on: those of the stored piece `sha256`, which has
    `piece_bytes`, from `start_byte` on."""

    path: str
    file_bytes: int
    offset_bytes: int
    sha256: str
    piece_bytes: int
    start_byte: int
    length_bytes: int


async def coming_of(connection: AsyncConnection, run_id: str) -> str | None:
    """The checkpoint that this run is writing, as far as anything of it was told."""
    statement = select(checkpoints.c.id).where(
        checkpoints.c.run_id == run_id, checkpoints.c.state == CheckpointState.COMING
    )
    found: str | None = (await connection.execute(statement)).scalar_one_or_none()
    return found


async def add_partial(
    connection: AsyncConnection, checkpoint_id: str, writer: Writer, step: int, *, now_ms: int
) -> None:
    """A checkpoint of which nothing is known yet. The caller holds the job's row, and looked for one before."""
    await connection.execute(
        checkpoints.insert().values(
            id=checkpoint_id,
            project_id=writer.project_id,
            job_id=writer.job_id,
            run_id=writer.run_id,
            epoch=writer.epoch,
            step=step,
            state=CheckpointState.COMING,
            manifest_sha256="",
            size_bytes=0,
            opened_ms=now_ms,
        )
    )


async def add_spans(connection: AsyncConnection, checkpoint_id: str, spans: Sequence[ComingSpan]) -> None:
    """Note that these are stored, and pin them. The newest word about a place counts. The caller claims the content."""
    if not spans:
        return
    sizes = {span.path: span.file_bytes for span in spans}
    entries = [
        {"checkpoint_id": checkpoint_id, "path": path, "size_bytes": size} for path, size in sorted(sizes.items())
    ]
    file = insert_rows(checkpoint_files, entries)
    await connection.execute(
        file.on_conflict_do_update(
            index_elements=["checkpoint_id", "path"], set_={"size_bytes": file.excluded.size_bytes}
        )
    )
    changed = ("sha256", "size_bytes", "start_byte", "length_bytes")
    rows = {
        (span.path, span.offset_bytes // OFFSET_UNIT_BYTES): {
            "checkpoint_id": checkpoint_id,
            "path": span.path,
            "position": span.offset_bytes // OFFSET_UNIT_BYTES,
            "sha256": span.sha256,
            "size_bytes": span.piece_bytes,
            "start_byte": span.start_byte,
            "length_bytes": span.length_bytes,
        }
        for span in spans
    }
    piece = insert_rows(checkpoint_pieces, [rows[place] for place in sorted(rows)])
    await connection.execute(
        piece.on_conflict_do_update(
            index_elements=["checkpoint_id", "path", "position"],
            set_={name: piece.excluded[name] for name in changed},
        )
    )


async def new_spans(connection: AsyncConnection, checkpoint_id: str, spans: Sequence[ComingSpan]) -> list[ComingSpan]:
    """Those that are not noted yet."""
    piece = checkpoint_pieces.c
    rows = await connection.execute(
        select(piece.path, piece.position, piece.sha256).where(
            piece.checkpoint_id == checkpoint_id, is_one_of(piece.sha256, {span.sha256 for span in spans})
        )
    )
    noted = {tuple(row) for row in rows.all()}
    return [span for span in spans if (span.path, span.offset_bytes // OFFSET_UNIT_BYTES, span.sha256) not in noted]


async def set_arrived(connection: AsyncConnection, checkpoint_id: str, came_bytes: int) -> None:
    """So many bytes more have come into the store."""
    stored = func.coalesce(checkpoints.c.stored_bytes, 0) + came_bytes
    await connection.execute(update(checkpoints).where(checkpoints.c.id == checkpoint_id).values(stored_bytes=stored))


async def came_of(connection: AsyncConnection, run_id: str) -> int:
    """How many bytes of what this run is writing have come into the store since it began to tell."""
    statement = select(func.coalesce(func.max(checkpoints.c.stored_bytes), 0)).where(
        checkpoints.c.run_id == run_id, checkpoints.c.state == CheckpointState.COMING
    )
    return int((await connection.execute(statement)).scalar_one())


async def coming_for(connection: AsyncConnection, target_run_id: str) -> list[ComingSpan]:
    """What is stored of the checkpoint that the source of this run's move is writing; empty for more than a machine
    could be told at once."""
    piece = checkpoint_pieces.c
    rows = await connection.execute(
        select(
            piece.path,
            checkpoint_files.c.size_bytes,
            piece.position,
            piece.sha256,
            piece.size_bytes,
            piece.start_byte,
            piece.length_bytes,
        )
        .select_from(moves)
        .join(checkpoints, checkpoints.c.run_id == moves.c.source_run_id)
        .join(checkpoint_pieces, piece.checkpoint_id == checkpoints.c.id)
        .join(
            checkpoint_files,
            (checkpoint_files.c.checkpoint_id == checkpoints.c.id) & (checkpoint_files.c.path == piece.path),
        )
        .where(
            moves.c.target_run_id == target_run_id,
            moves.c.state == MoveState.SAVING,
            checkpoints.c.job_id == moves.c.job_id,
            checkpoints.c.state == CheckpointState.COMING,
        )
        .order_by(piece.path, piece.position)
        .limit(_MOST_SPANS + 1)
    )
    found = [ComingSpan(path, size, position * OFFSET_UNIT_BYTES, *rest) for path, size, position, *rest in rows.all()]
    return found if len(found) <= _MOST_SPANS else []
