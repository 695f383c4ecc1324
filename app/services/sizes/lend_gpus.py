"""An elastic run goes on with another number of GPUs because another job waits, or no longer does."""

from __future__ import annotations

from app.core.lending import Lent
from app.core.model.run import RunState
from app.core.resizing import resized
from app.db.connection import Connection
from app.db.decisions.enactment import held_gpus
from app.db.moves.planned_moves import open_move_of_job
from app.db.runs.live_runs import lock_run
from app.db.runs.sizes import set_run_size, sized_run
from app.db.transitions import Event, add_job_event
from app.ports.clock import IdSource

LENT, HAS_BACK = "gpus_lent", "gpus_given_back"


async def lend_gpus(connection: Connection, ids: IdSource, lent: Lent, *, now_ms: int) -> bool:
    """Whether the run is to change. False, with nothing written, where it is not what was decided on any more."""
    job_id, run_id = lent.run.job_id, lent.run.run_id
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
    kind = HAS_BACK if lent.to_job_id is None else LENT
    data = {"run_id": run_id, "gpus": lent.gpus, "gpus_before": run.held.wanted, "to_job_id": lent.to_job_id}
    await add_job_event(connection, job_id, Event(kind, lent.reason, data), now_ms=now_ms)
    return True
