"""Checkpoint manifests: opened, committed under an epoch, chosen to resume from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, bindparam, exists, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.checkpoint import CheckpointState, SavedFile, Span
from app.core.model.merge import MergeState
from app.db.arrays import insert_rows, is_one_of
from app.db.tables import checkpoint_files, checkpoint_pieces, checkpoints, jobs, merges
from app.db.text import storable_json


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A manifest without its files."""

    checkpoint_id: str
    project_id: str
    job_id: str
    run_id: str
    epoch: int
    step: int
    state: CheckpointState
    manifest_sha256: str
    size_bytes: int


_COLUMNS = (
    checkpoints.c.id,
    checkpoints.c.project_id,
    checkpoints.c.job_id,
    checkpoints.c.run_id,
    checkpoints.c.epoch,
    checkpoints.c.step,
    checkpoints.c.state,
    checkpoints.c.manifest_sha256,
    checkpoints.c.size_bytes,
)


async def add_checkpoint(
    connection: AsyncConnection,
    row: CheckpointRow,
    files: tuple[SavedFile, ...],
    metrics: Mapping[str, float],
    *,
    now_ms: int,
) -> None:
    """Write an open manifest with its files: from now on its pieces are pinned."""
    await connection.execute(
        checkpoints.insert().values(
            id=row.checkpoint_id,
            project_id=row.project_id,
            job_id=row.job_id,
            run_id=row.run_id,
            epoch=row.epoch,
            step=row.step,
            state=row.state,
            manifest_sha256=row.manifest_sha256,
            size_bytes=row.size_bytes,
            metrics=storable_json(dict(metrics)),
            opened_ms=now_ms,
        )
    )
    checkpoint_id = row.checkpoint_id
    entries = [{"checkpoint_id": checkpoint_id, "path": file.path, "size_bytes": file.size_bytes} for file in files]
    await connection.execute(insert_rows(checkpoint_files, entries))
    pieces = [
        {
            "checkpoint_id": checkpoint_id,
            "path": file.path,
            "position": position,
            "sha256": span.sha256,
            "size_bytes": span.piece_bytes,
            "start_byte": span.start_byte,
            "length_bytes": span.length_bytes,
        }
        for file in files
        for position, span in enumerate(file.spans)
    ]
    if pieces:
        await connection.execute(insert_rows(checkpoint_pieces, pieces))


async def find_same(
    connection: AsyncConnection, job_id: str, epoch: int, step: int, manifest_sha256: str
) -> CheckpointRow | None:
    """The manifest that a repeated request to open means: same epoch, step and content, still of use."""
    rows = await connection.execute(
        select(*_COLUMNS)
        .where(
            checkpoints.c.job_id == job_id,
            checkpoints.c.step == step,
            checkpoints.c.epoch == epoch,
            checkpoints.c.manifest_sha256 == manifest_sha256,
            checkpoints.c.state.in_((CheckpointState.OPEN, CheckpointState.COMMITTED)),
        )
        .order_by(checkpoints.c.id)
        .limit(1)
    )
    return _row(rows.one_or_none())


async def get_checkpoint(connection: AsyncConnection, checkpoint_id: str) -> CheckpointRow | None:
    rows = await connection.execute(select(*_COLUMNS).where(checkpoints.c.id == checkpoint_id))
    return _row(rows.one_or_none())


async def files_of(connection: AsyncConnection, checkpoint_id: str) -> tuple[SavedFile, ...]:
    """The files of a manifest, sorted by path."""
    rows = await connection.execute(
        select(checkpoint_files.c.path, checkpoint_files.c.size_bytes)
        .where(checkpoint_files.c.checkpoint_id == checkpoint_id)
        .order_by(checkpoint_files.c.path)
    )
    sizes = {row.path: row.size_bytes for row in rows.all()}
    spans = await spans_of(connection, checkpoint_id)
    return tuple(SavedFile(path, size, tuple(spans.get(path, ()))) for path, size in sizes.items())


async def spans_of(
    connection: AsyncConnection, checkpoint_id: str, paths: Iterable[str] | None = None
) -> dict[str, list[Span]]:
    """The spans by path, in order; of all files, or of `paths`."""
    pieces = checkpoint_pieces.c
    statement = select(pieces.path, pieces.sha256, pieces.size_bytes, pieces.start_byte, pieces.length_bytes).where(
        pieces.checkpoint_id == checkpoint_id
    )
    if paths is not None:
        statement = statement.where(is_one_of(pieces.path, list(paths)))
    found: dict[str, list[Span]] = {}
    for path, *span in (await connection.execute(statement.order_by(pieces.path, pieces.position))).all():
        found.setdefault(path, []).append(Span(*span))
    return found


async def set_stored(connection: AsyncConnection, checkpoint_id: str, stored_bytes: int) -> None:
    """Note, once, how many bytes of an opened manifest the store did not have."""
    await connection.execute(
        update(checkpoints)
        .where(checkpoints.c.id == checkpoint_id, checkpoints.c.stored_bytes.is_(None))
        .values(stored_bytes=stored_bytes)
    )


# Asked at every call of every agent.
_NEWEST_BEFORE = (
    select(*_COLUMNS)
    .where(
        checkpoints.c.job_id == bindparam("job_id"),
        checkpoints.c.epoch < bindparam("before_epoch"),
        checkpoints.c.state == CheckpointState.COMMITTED,
    )
    .order_by(checkpoints.c.epoch.desc(), checkpoints.c.step.desc(), checkpoints.c.id.desc())
    .limit(1)
)


async def newest_before(connection: AsyncConnection, job_id: str, epoch: int) -> CheckpointRow | None:
    """The committed checkpoint that the run holding `epoch` resumes from.

    Nothing can be committed under an older epoch once a run holds this one: the answer never changes.
    """
    rows = await connection.execute(_NEWEST_BEFORE, {"job_id": job_id, "before_epoch": epoch})
    return _row(rows.one_or_none())


async def begins_with(connection: AsyncConnection, job_id: str) -> CheckpointRow | None:
    """The checkpoint of another job that this one was submitted to begin with."""
    rows = await connection.execute(
        select(*_COLUMNS).join(jobs, jobs.c.from_checkpoint_id == checkpoints.c.id).where(jobs.c.id == job_id)
    )
    return _row(rows.one_or_none())


async def learned_from(connection: AsyncConnection, job_id: str) -> CheckpointRow | None:
    """The checkpoint of the job that this one has waited for, with which it begins; None: there is none to be read. Of
    several, that of the task most like its own."""
    rows = await connection.execute(
        select(*_COLUMNS)
        .join(merges, merges.c.checkpoint_id == checkpoints.c.id)
        .where(
            merges.c.companion_job_id == job_id,
            merges.c.state == MergeState.ENDED,
            checkpoints.c.state == CheckpointState.COMMITTED,
        )
        .order_by(merges.c.score.desc(), merges.c.ended_ms.desc(), merges.c.id.desc())
        .limit(1)
    )
    return _row(rows.one_or_none())


async def mark_committed(connection: AsyncConnection, row: CheckpointRow, *, now_ms: int) -> bool:
    """Take an open manifest to committed, and make it the job's newest unless a newer one stands.

    False, with nothing written, when it is not open. The caller holds the job's row.
    """
    done = await connection.execute(
        update(checkpoints)
        .where(checkpoints.c.id == row.checkpoint_id, checkpoints.c.state == CheckpointState.OPEN)
        .values(state=CheckpointState.COMMITTED, committed_ms=now_ms)
    )
    if done.rowcount == 0:
        return False
    await _abort(connection, row.run_id, (CheckpointState.COMING,))  # this is what was coming
    standing = checkpoints.alias()
    newer_stands = exists().where(
        standing.c.id == jobs.c.checkpoint_id,
        tuple_(standing.c.epoch, standing.c.step) > tuple_(row.epoch, row.step),
    )
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == row.job_id, ~newer_stands)
        .values(checkpoint_id=row.checkpoint_id, checkpoint_step=row.step, refused_ms=None, refused_why=None)
    )
    return True


async def abort_open_checkpoints(connection: AsyncConnection, run_id: str) -> None:
    """The run is over: what it left open will never be committed, and its pieces are free."""
    await _abort(connection, run_id, (CheckpointState.COMING, CheckpointState.OPEN))


async def _abort(connection: AsyncConnection, run_id: str, states: tuple[CheckpointState, ...]) -> None:
    await connection.execute(
        update(checkpoints)
        .where(checkpoints.c.run_id == run_id, is_one_of(checkpoints.c.state, states))
        .values(state=CheckpointState.ABORTED)
    )


def _row(row: Row[*tuple[Any, ...]] | None) -> CheckpointRow | None:
    if row is None:
        return None
    return CheckpointRow(
        row.id,
        row.project_id,
        row.job_id,
        row.run_id,
        row.epoch,
        row.step,
        read_as(CheckpointState, row.state),
        row.manifest_sha256,
        row.size_bytes,
    )
