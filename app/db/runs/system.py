"""What runs use of their machines, by instant. Nothing is decided by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.arrays import insert_rows
from app.db.tables import system_samples

MOST_READ = 50_000  # of one job, the newest: months of them


@dataclass(frozen=True, slots=True)
class SampleRow:
    at_ms: int
    values: Mapping[str, Any]


async def add_samples(
    connection: AsyncConnection, job_id: str, epoch: int, samples: Mapping[int, Mapping[str, float]]
) -> None:
    """By instant; one that is there stays."""
    rows = [
        {"job_id": job_id, "at_ms": at_ms, "epoch": epoch, "values": dict(values)}
        for at_ms, values in sorted(samples.items())
    ]
    await connection.execute(insert_rows(system_samples, rows).on_conflict_do_nothing())


async def samples_of(connection: AsyncConnection, job_id: str) -> Sequence[SampleRow]:
    """All of a job's, in order."""
    of = system_samples.c
    newest = select(of.at_ms, of["values"]).where(of.job_id == job_id).order_by(of.at_ms.desc()).limit(MOST_READ)
    rows = (await connection.execute(newest)).all()
    return [SampleRow(at_ms, values) for at_ms, values in reversed(rows)]
