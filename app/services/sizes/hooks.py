"""Where a change of size takes part in the life of a run: its training says which GPUs it uses."""

from __future__ import annotations

from allpass.wire.agent import RunReport
from app.core.model.run import RunState
from app.core.resizing import GpusTold, after_told, in_words, kept_as_told
from app.db.connection import Connection
from app.db.engine import Database
from app.db.runs.desired_state import LiveRun
from app.db.runs.kept_gpus import set_kept
from app.db.runs.live_runs import lock_run
from app.db.runs.sizes import SizedRun, set_gpus_told, set_run_size, sized_run
from app.db.transitions import Event, add_job_event
from app.ports.clock import IdSource
from app.services.kit.capability import Capability
from app.services.sizes.tell_kept import tell_as_told

GPUS_CHANGED, GPUS_REFUSED = "gpus_changed", "gpus_refused"
_RESTARTED = ": restarted from its newest checkpoint, not exact"


class SizeHooks(Capability):
    async def take_report(
        self, database: Database, ids: IdSource, report: RunReport, run: LiveRun, *, now_ms: int
    ) -> None:
        told = _told(report)
        if told is None or told == run.gpus_told:
            return
        async with database.transaction() as connection:
            await take_gpus_told(connection, ids, report.run_id, told, now_ms=now_ms)


async def take_gpus_told(connection: Connection, ids: IdSource, run_id: str, told: GpusTold, *, now_ms: int) -> None:
    """Of a live run: what its training has left is free, and what it could not begin on is given back."""
    locked = await lock_run(connection, run_id)
    if locked is None or locked.state is RunState.ENDED or len(locked.job_ids) != 1:
        return
    run = await sized_run(connection, run_id)
    if run is None or run.told == told:
        return
    await set_gpus_told(connection, run, told)
    if run.told is None:  # whatever was thought of its code, it says which GPUs it uses
        await set_kept(connection, run_id, now_ms=None)
    is_kept = told.kept is not None
    if is_kept and (run.told is None or run.told.kept is None):
        await tell_as_told(connection, locked.job_ids[0], run, told, now_ms=now_ms)
    if run.asked is not None:  # else nobody waits for any of them, and all stay as they were rented
        await _settle(connection, ids, run, told, now_ms=now_ms)
    for event in _events(run, told):
        await add_job_event(connection, locked.job_ids[0], event, now_ms=now_ms)


async def _settle(connection: Connection, ids: IdSource, run: SizedRun, told: GpusTold, *, now_ms: int) -> None:
    to = after_told(run.held, told) if told.kept is None else kept_as_told(run.held, told)
    if to != run.held:
        await set_run_size(connection, run, to, ids.new("aloc"), now_ms=now_ms)


def _told(report: RunReport) -> GpusTold | None:
    found = report.gpus
    if found is None:
        return None
    named = tuple(found.used), tuple(found.leaving), tuple(found.refused)
    return GpusTold(*named, found.kept, found.pause_ms, found.after_save)


def _events(run: SizedRun, told: GpusTold) -> list[Event]:
    before = run.told
    found = []
    if before is not None and set(before.used) != set(told.used) and told.used:
        message = f"trains on {in_words(told.used)}, after {len(before.used)}{_RESTARTED if run.restarts else ''}"
        data = {"run_id": run.run_id, "gpu_indices": sorted(told.used), "gpus_before": len(before.used)}
        data |= {"exact": False} if run.restarts else {}
        found.append(Event(GPUS_CHANGED, message, data))
    refused = [one for one in told.refused if one in run.held.in_use and (before is None or one not in before.refused)]
    if refused:
        message = f"no process of it could begin on {in_words(refused)}: it goes on without"
        found.append(Event(GPUS_REFUSED, message, {"run_id": run.run_id, "gpu_indices": refused}))
    return found
