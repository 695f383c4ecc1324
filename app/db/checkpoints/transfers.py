"""How far runs have got with bytes that nobody can go on without: what agents say, and what we saw for ourselves."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import case, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import CheckpointState
from app.core.model.run import RunState
from app.core.model.transfer import Transfer, TransferKind
from app.db.arrays import is_one_of
from app.db.tables import checkpoint_pieces, checkpoints, objects, run_jobs, runs, transfers

HEARD_MS = 60_000  # agents tell every few seconds: one that was not heard of for longer is over, or stands still
_UNDER_WAY = (CheckpointState.OPEN, CheckpointState.COMING)


async def set_transfer(
    connection: AsyncConnection, run_id: str, kind: TransferKind, done_bytes: int, total_bytes: int, *, now_ms: int
) -> None:
    """Take an agent's word. The caller holds the run's fence."""
    statement = insert(transfers).values(
        run_id=run_id,
        kind=kind,
        done_bytes=done_bytes,
        total_bytes=total_bytes,
        begun_ms=now_ms,
        begun_bytes=done_bytes,
        grown_ms=now_ms,
    )
    new, old = statement.excluded, transfers.c
    is_same = (old.kind == new.kind) & (old.total_bytes == new.total_bytes) & (old.done_bytes <= new.done_bytes)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=[old.run_id],
            set_={
                "kind": new.kind,
                "done_bytes": new.done_bytes,
                "total_bytes": new.total_bytes,
                "begun_ms": case((is_same, old.begun_ms), else_=new.begun_ms),
                "begun_bytes": case((is_same, old.begun_bytes), else_=new.begun_bytes),
                "grown_ms": case((is_same & (old.done_bytes == new.done_bytes), old.grown_ms), else_=new.grown_ms),
            },
        )
    )


async def transfer_of(connection: AsyncConnection, job_id: str, *, heard_after_ms: int) -> Transfer | None:
    """What is under way for the job and was heard of lately: of the run that leaves, before the one that comes. Of a
    kind that only a newer release knows, nothing is said."""
    rows = await connection.execute(
        select(transfers)
        .join(run_jobs, run_jobs.c.run_id == transfers.c.run_id)
        .join(runs, runs.c.id == transfers.c.run_id)
        .where(run_jobs.c.job_id == job_id, runs.c.state != RunState.ENDED, transfers.c.grown_ms >= heard_after_ms)
        .where(is_one_of(transfers.c.kind, tuple(TransferKind)))
        .order_by((runs.c.state == RunState.STOPPING).desc(), runs.c.id.desc())
        .limit(1)
    )
    row = rows.one_or_none()
    if row is None:
        return None
    return Transfer(
        kind=TransferKind(row.kind),
        done_bytes=row.done_bytes,
        total_bytes=row.total_bytes,
        begun_ms=row.begun_ms,
        begun_bytes=row.begun_bytes,
        heard_ms=row.grown_ms,
    )


async def last_arrival_ms(connection: AsyncConnection, run_id: str) -> int:
    """When something of the checkpoint that this run sends was last known to have come; 0: never.

    That its agent reads and hashes files is its word alone, and counts: nothing can be seen of it from here.
    """
    opened = (
        select(func.max(func.greatest(checkpoints.c.opened_ms, objects.c.verified_ms)))
        .select_from(checkpoints)
        .outerjoin(checkpoint_pieces, checkpoint_pieces.c.checkpoint_id == checkpoints.c.id)
        .outerjoin(
            objects,
            (objects.c.project_id == checkpoints.c.project_id) & (objects.c.sha256 == checkpoint_pieces.c.sha256),
        )
        .where(checkpoints.c.run_id == run_id, checkpoints.c.state.in_(_UNDER_WAY))
    )
    told = select(
        func.greatest(transfers.c.arrived_ms, case((transfers.c.kind == TransferKind.READ, transfers.c.grown_ms)))
    ).where(transfers.c.run_id == run_id)
    row = (await connection.execute(select(opened.scalar_subquery(), told.scalar_subquery()))).one()
    return max(row[0] or 0, row[1] or 0)


async def pieces_awaited(connection: AsyncConnection, run_id: str, *, most: int) -> tuple[str, Mapping[str, int]]:
    """Of the checkpoint that this run sends: the project, and the pieces that are not known to be stored, in the order
    in which agents send them."""
    piece = checkpoint_pieces.c
    rows = await connection.execute(
        select(checkpoints.c.project_id, piece.sha256, piece.size_bytes)
        .join(checkpoint_pieces, piece.checkpoint_id == checkpoints.c.id)
        .outerjoin(objects, (objects.c.project_id == checkpoints.c.project_id) & (objects.c.sha256 == piece.sha256))
        .where(checkpoints.c.run_id == run_id, checkpoints.c.state.in_(_UNDER_WAY), objects.c.sha256.is_(None))
        .distinct()
        .order_by(piece.sha256)
        .limit(most)
    )
    found = rows.all()
    return (found[0].project_id if found else ""), {row.sha256: row.size_bytes for row in found}


async def set_arrival(connection: AsyncConnection, run_id: str, *, now_ms: int) -> None:
    """Something came, whatever the agent says of it."""
    statement = insert(transfers).values(
        run_id=run_id,
        kind=TransferKind.SEND,
        done_bytes=0,
        total_bytes=0,
        begun_ms=now_ms,
        begun_bytes=0,
        grown_ms=0,
        arrived_ms=now_ms,
    )
    await connection.execute(
        statement.on_conflict_do_update(index_elements=[transfers.c.run_id], set_={"arrived_ms": now_ms})
    )
