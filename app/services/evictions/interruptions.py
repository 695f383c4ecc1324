"""Where a machine that was bid for is lost to somebody who pays more: what that cost each of its jobs."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.money import Money
from app.core.model.run import RunPurpose
from app.core.policies.reasons import duration
from app.db.checkpoints.unsaved import at_risk
from app.db.connection import Connection
from app.db.runs.evictable_runs import left_run
from app.db.runs.live_runs import RunRow
from app.db.transitions import Event, add_job_event
from app.services.kit.capability import Capability

INTERRUPTED = "interrupted"
_HOUR_MS = 3_600_000


class InterruptionHooks(Capability):
    async def end_run(self, connection: Connection, run: RunRow, job_id: str, outcome: Outcome, *, now_ms: int) -> None:
        """Its owner is told, where the job goes on from its last checkpoint. Nobody could ask it to save."""
        if not outcome.interrupted or outcome.job_state not in PLACEABLE_JOB_STATES:
            return
        event = await _told(connection, run, job_id, now_ms=now_ms)
        await add_job_event(connection, job_id, event, now_ms=now_ms)


async def _told(connection: Connection, run: RunRow, job_id: str, *, now_ms: int) -> Event:
    """What was done after the agent's last word nobody knows; it is not counted."""
    trained = run.purpose is RunPurpose.TRAIN
    left = await left_run(connection, run.run_id, job_id) if trained else None
    until_ms = now_ms if left is None or left.heard_ms is None else min(now_ms, left.heard_ms)
    lost_ms = 0 if left is None else max(0, until_ms - left.unsaved_since_ms)
    lost = Money(0 if left is None else left.price_micros * lost_ms // _HOUR_MS)
    steps = (await at_risk(connection, job_id, now_ms=now_ms)).steps if trained else 0
    data = {"run_id": run.run_id, "steps": steps, "lost_s": lost_ms / 1000, "lost_usd": str(lost)}
    told = "its machine, which was bid for, went to somebody who pays more; it goes on from its last checkpoint"
    if lost_ms or steps:
        of_steps = f"{steps:,} step{'s' * (steps != 1)}, " if steps else ""
        told = f"{told}: {of_steps}{duration(lost_ms)} of its work, {lost} of its machine, are lost"
    return Event(INTERRUPTED, told, data)
