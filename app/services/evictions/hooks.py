"""Where evictions take part in the life of a run: it was asked to leave for a guaranteed job, and has left."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.money import Money
from app.core.policies.reasons import duration
from app.db.connection import Connection
from app.db.jobs.set_asides import count_eviction
from app.db.runs.evictable_runs import left_run
from app.db.runs.live_runs import RunRow
from app.db.transitions import Event, add_job_event
from app.services.kit.capability import Capability

EVICTED = "evicted"
_HOUR_MS = 3_600_000


class EvictionHooks(Capability):
    async def end_run(self, connection: Connection, run: RunRow, job_id: str, outcome: Outcome, *, now_ms: int) -> None:
        """Its owner is told what that cost, and it costs more to evict the job again. A job that was done meanwhile,
        failed by itself or was stopped was not evicted."""
        if run.evicted_for_job_id is None or outcome.job_state not in PLACEABLE_JOB_STATES:
            return
        await count_eviction(connection, job_id, saved=outcome.saved)
        await add_job_event(connection, job_id, await _told(connection, run, job_id, outcome, now_ms), now_ms=now_ms)


async def _told(connection: Connection, run: RunRow, job_id: str, outcome: Outcome, now_ms: int) -> Event:
    left = None if outcome.saved else await left_run(connection, run.run_id, job_id)
    lost_ms = 0 if left is None else max(0, now_ms - left.unsaved_since_ms)
    lost = Money(0 if left is None else left.price_micros * lost_ms // _HOUR_MS)
    data = {"run_id": run.run_id, "saved": outcome.saved, "lost_s": lost_ms / 1000, "lost_usd": str(lost)}
    if not lost_ms:
        return Event(EVICTED, "has left its GPUs to a guaranteed job with all that it had done", data)
    told = f"has left its GPUs to a guaranteed job: {duration(lost_ms)} of its work, {lost} of its machine, are lost"
    return Event(EVICTED, told, data)
