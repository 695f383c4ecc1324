"""When jobs will be done, as far as their present runs have measured it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.model.job import JobState
from app.core.progress import Finish, Target, estimate_finish, expected_end, stated_end
from app.db.connection import Connection
from app.db.jobs.reads import JobRow
from app.db.learning.losses import averaged_metric
from app.db.learning.run_speeds import paces_of

_LOSS = "loss"


async def estimate_finishes(connection: Connection, jobs: Sequence[JobRow], *, now_ms: int) -> dict[str, Finish]:
    """By job id, for running jobs whose number of steps is known and whose present run has measured two of them."""
    running = [job for job in jobs if job.state is JobState.RUNNING and job.total_steps is not None]
    if not running:
        return {}
    paces = await paces_of(connection, [job.id for job in running])
    found = {
        job.id: estimate_finish(
            now_ms,
            job.step,
            stated_end(job.total_steps, has_target=bool(job.template.get("target"))),
            paces.get(job.id),
        )
        for job in running
        if job.total_steps is not None
    }
    return {job_id: finish for job_id, finish in found.items() if finish is not None}


async def estimate_one(connection: Connection, job: JobRow, *, now_ms: int) -> Finish | None:
    """As `estimate_finishes`, of one job: by the curve of its losses as well, which is too slow for a list."""
    if job.state is not JobState.RUNNING:
        return None
    pace = (await paces_of(connection, [job.id])).get(job.id)
    if pace is None:
        return None
    name, target = _watched(job.template)
    seen = () if job.total_steps and target is None else await averaged_metric(connection, job.id, name)
    end = await asyncio.to_thread(expected_end, job.total_steps, seen, target)
    return estimate_finish(now_ms, job.step, end, pace)


def _watched(template: Mapping[str, Any]) -> tuple[str, Target | None]:
    """The metric that tells the end of the job, and its target."""
    told = template.get("target")
    if not told:
        return _LOSS, None
    return told["name"], Target(float(told["value"]), told.get("goal", "min"))
