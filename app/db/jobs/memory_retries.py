"""Jobs that ran out of memory: what they had, and what they ask for from then on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import case, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.model.job import Resources
from app.core.model.node import GONE_NODE_STATES
from app.core.out_of_memory import RETRIES, RentedMemory
from app.db.arrays import is_one_of
from app.db.tables import jobs, nodes


@dataclass(frozen=True, slots=True)
class MemoryRetries:
    """What a job asks for now, how often it was tried again, and how often it may be."""

    job_id: str
    project_id: str
    resources: Resources
    retries: int
    allowed: int


async def machine_of(connection: AsyncConnection, node_id: str) -> RentedMemory:
    """What the node has."""
    row = (
        await connection.execute(
            select(nodes.c.gpu_type, nodes.c.gpu_memory_bytes, nodes.c.memory_bytes).where(nodes.c.id == node_id)
        )
    ).one()
    return RentedMemory(row.gpu_type, row.gpu_memory_bytes, row.memory_bytes)


async def asked_by(connection: AsyncConnection, job_ids: Sequence[str]) -> tuple[MemoryRetries, ...]:
    """In the order of their ids. The jobs are locked already. Where the owner says how often a job may be begun again,
    its other failures are among them."""
    used = case((jobs.c.retries.is_(None), jobs.c.memory_retries), else_=jobs.c.retried)
    rows = await connection.execute(
        select(jobs.c.id, jobs.c.project_id, jobs.c.resources, used, func.coalesce(jobs.c.retries, RETRIES))
        .where(is_one_of(jobs.c.id, job_ids))
        .order_by(jobs.c.id)
    )
    return tuple(
        MemoryRetries(row[0], row[1], codec.decode_row(Resources, row[2]), retries=row[3], allowed=row[4])
        for row in rows
    )


async def ask_for_more(connection: AsyncConnection, job_id: str, resources: Resources) -> None:
    """From now on the job asks for these, and has used up one retry."""
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(resources=jobs.c.resources.concat(asdict(resources)), memory_retries=jobs.c.memory_retries + 1)
    )


async def pool_of(connection: AsyncConnection, project_id: str) -> tuple[tuple[str, int, int, int], ...]:
    """(GPU type, GPUs, bytes of each, main memory) of the project's nodes that are not gone."""
    rows = await connection.execute(
        select(nodes.c.gpu_type, nodes.c.gpu_count, nodes.c.gpu_memory_bytes, nodes.c.memory_bytes)
        .where(nodes.c.project_id == project_id, nodes.c.state.not_in(GONE_NODE_STATES))
        .order_by(nodes.c.id)
    )
    return tuple((row[0], row[1], row[2], row[3]) for row in rows)
