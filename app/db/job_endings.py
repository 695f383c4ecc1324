"""What a job keeps of a run that is over."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, case, func, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import jobs


async def give_back_job(
    connection: AsyncConnection,
    job_id: str,
    *,
    serverless_ms: int,
    ran_ms: int,
    fault: bool,
    planned_move: bool,
    avoid_offer: str | None,
    not_before_ms: int,
    epoch: int | None = None,
) -> None:
    """Raise the job's epoch, so that its last run is fenced, and add up what the run used.

    `epoch`: the one to raise it to, which was set aside for the run that the job goes on with.
    """
    avoided: ColumnElement[Any] = jobs.c.avoided_offers
    if avoid_offer is not None:
        avoided = case(
            (jobs.c.avoided_offers.contains([avoid_offer]), jobs.c.avoided_offers),
            else_=func.array_append(jobs.c.avoided_offers, avoid_offer),
        )
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            epoch=jobs.c.epoch + 1 if epoch is None else epoch,
            faults=jobs.c.faults + int(fault),
            moves=jobs.c.moves + int(planned_move),
            serverless_used_ms=jobs.c.serverless_used_ms + serverless_ms,
            ran_ms=jobs.c.ran_ms + ran_ms,
            avoided_offers=avoided,
            not_before_ms=func.greatest(jobs.c.not_before_ms, not_before_ms),
        )
    )


async def note_profile_try(connection: AsyncConnection, job_id: str) -> None:
    """Its task was looked at, and is not known after that."""
    await connection.execute(update(jobs).where(jobs.c.id == job_id).values(profile_tries=jobs.c.profile_tries + 1))


async def note_step(connection: AsyncConnection, job_id: str, step: int) -> None:
    """A run of the job has started its code at that step, without a change of the job's state."""
    await connection.execute(update(jobs).where(jobs.c.id == job_id).values(step=step))
