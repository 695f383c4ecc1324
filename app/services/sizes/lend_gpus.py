"""An elastic run goes on with another number of GPUs because another job waits, or no longer does."""

from __future__ import annotations

from app.core.lending import TAKE_MS, Lent
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.run import RunState
from app.core.resizing import resized
from app.core.set_aside import SetAside
from app.db.connection import Connection
from app.db.decisions.enactment import held_gpus
from app.db.jobs.set_asides import classed_jobs, set_aside
from app.db.lock_order import lock_scope
from app.db.moves.planned_moves import open_move_of_job
from app.db.runs.live_runs import lock_run
from app.db.runs.sizes import set_run_size, sized_run
from app.db.transitions import Event, add_job_event
from app.ports.clock import IdSource

LENT, HAS_BACK, NO_FASTER = "gpus_lent", "gpus_given_back", "gpus_no_faster"


async def lend_gpus(connection: Connection, ids: IdSource, lent: Lent, *, now_ms: int) -> bool:
    """Whether the run is to change. False, with nothing written, where it is not what was decided on any more."""
    job_id, run_id = lent.run.job_id, lent.run.run_id
    if lent.to_job_id is not None and lent.set_aside:
        await lock_scope(connection, [job_id, lent.to_job_id])
    locked = await lock_run(connection, run_id)
    if locked is None or locked.state is not RunState.RUNNING or locked.job_ids != (job_id,):
        return False
    run = await sized_run(connection, run_id)
    if run is None or run.held != lent.run.held or await open_move_of_job(connection, job_id) is not None:
        return False
    others = (await held_gpus(connection, run.node_id) | set(run.broken)) - set(run.held.indices)
    to = resized(run.held, lent.gpus, run.node_gpus, others)
    if to is None:
        return False
    await set_run_size(connection, run, to, ids.new("aloc"), now_ms=now_ms)
    await _set_aside(connection, lent, now_ms=now_ms)
    kind = LENT if lent.to_job_id is not None else HAS_BACK if lent.gpus > run.held.wanted else NO_FASTER
    data = {"run_id": run_id, "gpus": lent.gpus, "gpus_before": run.held.wanted, "to_job_id": lent.to_job_id}
    await add_job_event(connection, job_id, Event(kind, lent.reason, data), now_ms=now_ms)
    return True


async def _set_aside(connection: Connection, lent: Lent, *, now_ms: int) -> None:
    """What is lent to an interactive job is given to nobody else meanwhile, whoever is due before it."""
    if lent.to_job_id is None or not lent.set_aside:
        return
    job = (await classed_jobs(connection, [lent.to_job_id])).get(lent.to_job_id)
    if job is None or job.state not in PLACEABLE_JOB_STATES or job.pause_reason is not None:
        return
    if job.set_aside_until_ms is None or job.set_aside_until_ms <= now_ms:
        aside = SetAside(job.job_id, lent.run.node_id, lent.set_aside, job.project_id)
        await set_aside(connection, [aside], until_ms=now_ms + TAKE_MS + lent.run.leaves_after_ms)
