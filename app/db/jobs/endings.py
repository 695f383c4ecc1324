"""What a job keeps of a run that is over."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, case, func, update
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
    unreached_offer: str | None = None,
    epoch: int | None = None,
) -> None:
    """Raise the job's epoch, so that its last run is fenced, and add up what the run used.

    `epoch`: the one to raise it to, which was set aside for the run that the job goes on with.
    """
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            epoch=jobs.c.epoch + 1 if epoch is None else epoch,
            faults=jobs.c.faults + int(fault),
            moves=jobs.c.moves + int(planned_move),
            serverless_used_ms=jobs.c.serverless_used_ms + serverless_ms,
            ran_ms=jobs.c.ran_ms + ran_ms,
            avoided_offers=_with(jobs.c.avoided_offers, avoid_offer),
            unreached_offers=_with(jobs.c.unreached_offers, unreached_offer),
            not_before_ms=func.greatest(jobs.c.not_before_ms, not_before_ms),
        )
    )


def _with(offers: Column[Any], key: str | None) -> ColumnElement[Any]:
    """The list with this one in it, once."""
    if key is None:
        return offers
    return case((offers.contains([key]), offers), else_=func.array_append(offers, key))


async def count_profile_try(connection: AsyncConnection, job_id: str) -> None:
    """Its task was looked at, and is not known after that."""
    await connection.execute(update(jobs).where(jobs.c.id == job_id).values(profile_tries=jobs.c.profile_tries + 1))


async def set_step(connection: AsyncConnection, job_id: str, step: int) -> None:
    """A run of the job has started its code at that step, without a change of the job's state."""
    await connection.execute(update(jobs).where(jobs.c.id == job_id).values(step=step))
