"""A machine's life ends, and with it what a job that has never saved has done there: its owner is told before."""

from __future__ import annotations

from app.core.model.run import RunState
from app.core.saving import HOW_TO_SAVE, NEVER_SAVED
from app.db.checkpoints.unsaved import have_never_saved
from app.db.connection import Connection
from app.db.reading.explanations import last_event
from app.db.runs.live_runs import live_runs_of_node, lock_run
from app.db.transitions import Event, add_job_event

MACHINE_ENDS = "machine_ends"


async def warn_of_machine_end(connection: Connection, node_id: str, why: str, *, left_ms: int, now_ms: int) -> None:
    """Once for each run. `why`: that it ends, and when, in words. The caller holds the node's lock."""
    for run_id in await live_runs_of_node(connection, node_id):
        run = await lock_run(connection, run_id)
        if run is None or run.state is not RunState.RUNNING or not await have_never_saved(connection, run.job_ids):
            continue
        told = f"{why}; the job {NEVER_SAVED}, so it stays until then and begins again elsewhere; {HOW_TO_SAVE}"
        data = {"level": "warning", "run_id": run_id, "node_id": node_id, "left_ms": left_ms}
        for job_id in run.job_ids:
            known = await last_event(connection, job_id, (MACHINE_ENDS,))
            if known is None or known.data.get("run_id") != run_id:
                await add_job_event(connection, job_id, Event(MACHINE_ENDS, told, data), now_ms=now_ms)
