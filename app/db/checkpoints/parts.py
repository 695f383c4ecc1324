"""Parts of checkpoints: what each machine of a job on several has written of a step, until all of it is one checkpoint.

A part belongs to the run that leads, whichever machine wrote it, and goes with it. Its pieces are pinned until then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.parts import Part, pack_files, unpack_files
from app.core.model.run import RunState
from app.core.model.transfer import TransferKind
from app.db.arrays import insert_rows, is_one_of
from app.db.tables import checkpoint_part_pieces, checkpoint_parts, jobs, objects, run_jobs, runs, transfers
from app.db.text import storable_json


@dataclass(frozen=True, slots=True)
class PartRow:
    """A part without what it consists of. `lead_run_id`: of the run that has the job."""

    part_id: str
    project_id: str
    job_id: str
    lead_run_id: str
    run_id: str
    rank: int
    epoch: int
    step: int
    digest: str
    size_bytes: int
    is_stored: bool = False
    is_whole: bool = False
    refused_why: str | None = None
    stored_bytes: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


_COLUMNS = (
    *(checkpoint_parts.c.id, checkpoint_parts.c.project_id, checkpoint_parts.c.job_id, checkpoint_parts.c.lead_run_id),
    *(checkpoint_parts.c.run_id, checkpoint_parts.c.node_rank, checkpoint_parts.c.epoch, checkpoint_parts.c.step),
    *(checkpoint_parts.c.digest, checkpoint_parts.c.size_bytes, checkpoint_parts.c.stored_ms),
    *(checkpoint_parts.c.whole_ms, checkpoint_parts.c.refused_why, checkpoint_parts.c.stored_bytes),
    checkpoint_parts.c.metrics,
)


async def get_part(connection: AsyncConnection, part_id: str) -> PartRow | None:
    rows = await connection.execute(select(*_COLUMNS).where(checkpoint_parts.c.id == part_id))
    row = rows.one_or_none()
    return None if row is None else _row(row)


async def parts_of_step(connection: AsyncConnection, lead_run_id: str, step: int) -> list[PartRow]:
    """Of all machines, by rank."""
    of = checkpoint_parts.c
    rows = await connection.execute(
        select(*_COLUMNS).where(of.lead_run_id == lead_run_id, of.step == step).order_by(of.node_rank)
    )
    return [_row(row) for row in rows]


async def contents_of(connection: AsyncConnection, part_ids: Collection[str]) -> list[Part]:
    """What these parts consist of, by rank."""
    of = checkpoint_parts.c
    rows = await connection.execute(
        select(of.node_rank, of.files, of.listing).where(is_one_of(of.id, sorted(part_ids))).order_by(of.node_rank)
    )
    return [Part(row.node_rank, unpack_files(row.files), row.listing) for row in rows]


async def add_part(
    connection: AsyncConnection,
    row: PartRow,
    part: Part,
    sizes: Mapping[str, int],
    metrics: Mapping[str, float],
    *,
    now_ms: int,
) -> None:
    """In the place of what the same machine has told of this step before. The caller claims the pieces (`sizes`)."""
    of = checkpoint_parts.c
    await connection.execute(
        delete(checkpoint_parts).where(of.lead_run_id == row.lead_run_id, of.node_rank == row.rank, of.step == row.step)
    )
    await connection.execute(
        checkpoint_parts.insert().values(
            id=row.part_id,
            project_id=row.project_id,
            job_id=row.job_id,
            lead_run_id=row.lead_run_id,
            run_id=row.run_id,
            node_rank=row.rank,
            epoch=row.epoch,
            step=row.step,
            digest=row.digest,
            size_bytes=row.size_bytes,
            files=pack_files(part.files),
            listing=part.listing,
            metrics=storable_json(dict(metrics)),
            opened_ms=now_ms,
            refused_why=row.refused_why,
        )
    )
    if sizes:
        pinned = [{"part_id": row.part_id, "sha256": sha256, "size_bytes": size} for sha256, size in sizes.items()]
        await connection.execute(insert_rows(checkpoint_part_pieces, pinned))


async def delete_oldest_parts(connection: AsyncConnection, row: PartRow, *, most: int) -> None:
    """Of this machine only so many steps stay open: it has given up the others."""
    of = checkpoint_parts.c
    mine = (of.lead_run_id == row.lead_run_id) & (of.node_rank == row.rank)
    newest = (of.opened_ms.desc(), of.step.desc())
    old = select(of.id).where(mine, of.id != row.part_id).order_by(*newest).offset(most - 1).subquery()
    await connection.execute(delete(checkpoint_parts).where(of.id.in_(select(old.c.id))))


async def set_part_opened(connection: AsyncConnection, part_id: str, stored_bytes: int) -> None:
    """Note, once, how many bytes of it the store did not have."""
    of = checkpoint_parts.c
    await connection.execute(
        update(checkpoint_parts).where(of.id == part_id, of.stored_bytes.is_(None)).values(stored_bytes=stored_bytes)
    )


async def set_part_stored(connection: AsyncConnection, part_id: str, *, now_ms: int) -> None:
    """All of its pieces were seen in the store."""
    of = checkpoint_parts.c
    await connection.execute(
        update(checkpoint_parts).where(of.id == part_id, of.stored_ms.is_(None)).values(stored_ms=now_ms)
    )


async def refuse_part(connection: AsyncConnection, part_id: str, why: str) -> None:
    """The checkpoint of its step will never be complete."""
    await connection.execute(
        update(checkpoint_parts)
        .where(checkpoint_parts.c.id == part_id, checkpoint_parts.c.whole_ms.is_(None))
        .values(refused_why=why)
    )


async def set_whole(connection: AsyncConnection, lead_run_id: str, step: int, *, now_ms: int) -> None:
    """Its parts are one checkpoint, which pins the pieces from now on. What was open of earlier steps is given up."""
    of = checkpoint_parts.c
    await connection.execute(
        delete(checkpoint_parts).where(of.lead_run_id == lead_run_id, of.step < step, of.whole_ms.is_(None))
    )
    done = await connection.execute(
        update(checkpoint_parts)
        .where(of.lead_run_id == lead_run_id, of.step == step)
        .values(whole_ms=now_ms)
        .returning(of.id)
    )
    await connection.execute(
        delete(checkpoint_part_pieces).where(is_one_of(checkpoint_part_pieces.c.part_id, list(done.scalars())))
    )


async def delete_parts(connection: AsyncConnection, lead_run_id: str) -> None:
    """The run is over: what is open will never be complete."""
    await connection.execute(delete(checkpoint_parts).where(checkpoint_parts.c.lead_run_id == lead_run_id))


async def step_awaited(connection: AsyncConnection, lead_run_id: str) -> int | None:
    """The newest step of which the first machine has told its part, and that is no checkpoint yet: the others send
    theirs before any other."""
    of = checkpoint_parts.c
    rows = await connection.execute(
        select(func.max(of.step)).where(
            of.lead_run_id == lead_run_id, of.node_rank == 0, of.whole_ms.is_(None), of.refused_why.is_(None)
        )
    )
    found: int | None = rows.scalar_one()
    return found


async def has_the_job(connection: AsyncConnection, lead_run_id: str, job_id: str) -> bool:
    """Whether the run that leads is live and holds the job's current epoch. The caller holds the job's row."""
    rows = await connection.execute(
        select(runs.c.id)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, jobs.c.id == run_jobs.c.job_id)
        .where(
            runs.c.id == lead_run_id,
            runs.c.state != RunState.ENDED,
            jobs.c.id == job_id,
            jobs.c.epoch == run_jobs.c.epoch,
        )
    )
    return rows.first() is not None


async def last_part_arrival_ms(connection: AsyncConnection, lead_run_id: str) -> int:
    """When something of the parts that this run waits for was last known to have come, from whichever machine; that
    one reads and hashes its files is its agent's word, and counts. 0: never."""
    of = checkpoint_parts.c
    opened = (
        select(func.max(func.greatest(of.opened_ms, of.stored_ms, objects.c.verified_ms)))
        .select_from(checkpoint_parts)
        .outerjoin(checkpoint_part_pieces, checkpoint_part_pieces.c.part_id == of.id)
        .outerjoin(
            objects, (objects.c.project_id == of.project_id) & (objects.c.sha256 == checkpoint_part_pieces.c.sha256)
        )
        .where(_is_open(lead_run_id))
    )
    told = (
        select(func.max(transfers.c.grown_ms))
        .join(runs, runs.c.id == transfers.c.run_id)
        .where(runs.c.member_of == lead_run_id, transfers.c.kind == TransferKind.READ)
    )
    row = (await connection.execute(select(opened.scalar_subquery(), told.scalar_subquery()))).one()
    return max(row[0] or 0, row[1] or 0)


async def part_pieces_awaited(
    connection: AsyncConnection, lead_run_id: str, *, most: int
) -> tuple[str, Mapping[str, int]]:
    """Of open parts: the project, and pieces that are not known to be stored."""
    of, piece = checkpoint_parts.c, checkpoint_part_pieces.c
    rows = await connection.execute(
        select(of.project_id, piece.sha256, piece.size_bytes)
        .join(checkpoint_part_pieces, piece.part_id == of.id)
        .outerjoin(objects, (objects.c.project_id == of.project_id) & (objects.c.sha256 == piece.sha256))
        .where(_is_open(lead_run_id), objects.c.sha256.is_(None))
        .distinct()
        .order_by(piece.sha256)
        .limit(most)
    )
    found = rows.all()
    return (found[0].project_id if found else ""), {row.sha256: row.size_bytes for row in found}


def _is_open(lead_run_id: str) -> ColumnElement[bool]:
    of = checkpoint_parts.c
    return (of.lead_run_id == lead_run_id) & of.whole_ms.is_(None)


def _row(row: Row[*tuple[Any, ...]]) -> PartRow:
    return PartRow(
        part_id=row.id,
        project_id=row.project_id,
        job_id=row.job_id,
        lead_run_id=row.lead_run_id,
        run_id=row.run_id,
        rank=row.node_rank,
        epoch=row.epoch,
        step=row.step,
        digest=row.digest,
        size_bytes=row.size_bytes,
        is_stored=row.stored_ms is not None,
        is_whole=row.whole_ms is not None,
        refused_why=row.refused_why,
        stored_bytes=row.stored_bytes or 0,
        metrics=row.metrics,
    )
