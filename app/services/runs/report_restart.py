"""A job that has trained before begins again at step 0: that is an alarm, and its owner is told what it costs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from app.core.model.run import RunPurpose
from app.core.policies.reasons import duration
from app.core.saving import HOW_TO_SAVE
from app.db.connection import Connection
from app.db.runs.live_runs import RunRow
from app.db.runs.progress import Done
from app.db.transitions import Event, add_job_event

log = logging.getLogger(__name__)
_WORTH_AN_ALARM_MS = 10_000  # of code that reports no steps


async def report_restart(
    connection: Connection, run: RunRow, done: Mapping[str, Done], first_step: int, *, now_ms: int
) -> None:
    """`done`: what each job had done before this run of it began at `first_step`. Nothing for a job that goes on, that
    begins for the first time, or whose earlier run ended at once."""
    if first_step or run.purpose is not RunPurpose.TRAIN:
        return
    for job_id, before in done.items():
        if not before.steps and before.ran_ms < _WORTH_AN_ALARM_MS:
            continue
        steps = f"{before.steps:,} steps in {duration(before.ran_ms)}" if before.steps else duration(before.ran_ms)
        told = (
            f"begins again at step 0: it has done {steps} so far, which is lost, as no checkpoint of it was kept, and "
            f"is done and paid for again; {HOW_TO_SAVE}"
        )
        log.error("ALARM: %s %s", job_id, told)
        data = {"level": "warning", "run_id": run.run_id, "steps": before.steps, "ran_ms": before.ran_ms}
        await add_job_event(connection, job_id, Event("began_again", told, data), now_ms=now_ms)
