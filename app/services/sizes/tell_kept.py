"""That the training of a job keeps its GPUs is told in words, once, and nothing more is asked of it."""

from __future__ import annotations

from app.core.keeping_gpus import KeepsGpus, WatchedRun, followed_by_ms
from app.core.model.run import RunState
from app.core.policies.reasons import duration
from app.core.resizing import LEAST, GpusHeld, GpusTold, kept_as_told
from app.db.connection import Connection
from app.db.jobs.steering import change_job, read_asks
from app.db.runs.kept_gpus import has_been_told, set_kept
from app.db.runs.live_runs import lock_run
from app.db.runs.sizes import SizedRun, set_run_size, sized_run
from app.db.transitions import Event, add_job_event
from app.ports.clock import IdSource

GPUS_KEPT = "gpus_kept"
FAILED, SHORT = "failed", "short"  # as agents say it
_LINES = (
    "code of your own follows with `from allpass.training import elastic` and `elastic.train(build)` "
    "(allpass example elastic.py); allpass finetune does by itself; any code that saves is restarted for it with "
    "--resize-by restart"
)
_UNSAVED_YET = (
    "for now: its GPUs change by restarting it, and its code has neither said that it saves when it is asked to nor "
    "saved a checkpoint; what never saved is not stopped"
)


async def tell_kept(connection: Connection, ids: IdSource, watched: WatchedRun, why: KeepsGpus, *, now_ms: int) -> bool:
    """Whether that was written. False where the run has moved on since it was looked at.

    A GPU that is not left stays the run's: what it was to use is again all that it holds, so that nobody waits for it.
    """
    locked = await lock_run(connection, watched.run_id)
    if locked is None or locked.state is not RunState.RUNNING or locked.job_ids != (watched.job_id,):
        return False
    run = await sized_run(connection, watched.run_id)
    if run is None or run.held != watched.held or run.told != watched.told:
        return False
    is_new = why is not KeepsGpus.SILENT or not await has_been_told(connection, watched.job_id)
    await set_kept(connection, watched.run_id, now_ms=now_ms)
    if why is KeepsGpus.NOT_LEFT:
        all_ = GpusHeld(run.held.indices, len(run.held.indices))
        await set_run_size(connection, run, all_, ids.new("aloc"), now_ms=now_ms)
    if is_new:
        data = {"run_id": watched.run_id, "why": why.value, "gpus": len(run.held.indices)}
        await add_job_event(connection, watched.job_id, Event(GPUS_KEPT, _words(run, why), data), now_ms=now_ms)
    return True


async def tell_as_told(connection: Connection, job_id: str, run: SizedRun, told: GpusTold, *, now_ms: int) -> None:
    """Of a locked run that is restarted for its GPUs, and could not be: its agent has said so. Where its job asks for
    the number on which it failed, it asks for the former one again, wherever it begins next."""
    await set_kept(connection, run.run_id, now_ms=now_ms)
    count, wanted = len(kept_as_told(run.held, told).indices), run.held.wanted
    data = {"run_id": run.run_id, "why": told.kept, "gpus": count, "gpus_wanted": wanted}
    message = _restart_failed(count, wanted, told.kept or "")
    resources = await read_asks(connection, job_id) if told.kept in (FAILED, SHORT) else {}
    if resources.get("gpus_max") == wanted != count and LEAST not in resources:
        await change_job(connection, job_id, {"resources": {**resources, "gpus_min": count, "gpus_max": count}})
        message = f"{message}; its job asks for {count} again"
    await add_job_event(connection, job_id, Event(GPUS_KEPT, message, data), now_ms=now_ms)


def _restart_failed(count: int, wanted: int, why: str) -> str:
    unsaved = f"asked to save and to begin again on {wanted}, it has not saved, and went on from its newest checkpoint"
    failed = f"begun again on {wanted} from what it had saved, it failed at once, and went on from the same checkpoint"
    short = (
        f"begun again on {wanted} from what it had saved, it found nothing left to do, though it had said that there "
        "was, and went on from the same checkpoint: count steps (max_steps) rather than epochs, or keep the global "
        "batch, to have another number"
    )
    refused = "what it saves cannot be kept, or it does not go on from there"
    what = {FAILED: failed, SHORT: short, "refused": refused}.get(why, unsaved)
    return f"keeps {_its(count)}: {what}; it is not asked to begin again in this run"


def _its(count: int) -> str:
    return "its 1 GPU" if count == 1 else f"its {count} GPUs"


def _words(run: SizedRun, why: KeepsGpus) -> str:
    count = len(run.held.indices)
    its = _its(count)
    if why is KeepsGpus.SILENT and run.restarts:
        return f"keeps {its} {_UNSAVED_YET}"
    if why is KeepsGpus.SILENT:
        return f"keeps {its}: it is elastic, and its code does not follow which GPUs it is to use; {_LINES}"
    told = run.told or GpusTold()
    used, since = len(told.used), duration(followed_by_ms(told))
    if why is KeepsGpus.NOT_LEFT:
        return (
            f"keeps {its}: for {since} it was to use {run.held.wanted} and has not left the others, though its code "
            "says that it can; it lends none in this run. Pause it, resize it and resume it for another number"
        )
    return (
        f"holds {its} and uses {used}, for {since} now: its code has not begun on the others, which are paid for all "
        "the same. Pause it, resize it and resume it for another number"
    )
