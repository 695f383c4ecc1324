"""A job that asks for a range goes on on a machine of another size, which it moves to while it trains."""

from __future__ import annotations

from app.core.elastic.range_moves import SMALLER
from app.core.elastic.runs import ElasticRun
from app.core.model.run import RunState
from app.db.connection import Connection
from app.db.jobs.steering import change_job
from app.db.lock_order import lock_scope
from app.db.runs.grown import grown_resources
from app.db.runs.live_runs import live_run_of_job
from app.db.runs.sizes import sized_run
from app.db.transitions import Event, add_job_event


async def is_as_decided(connection: Connection, run: ElasticRun) -> bool:
    """Whether the run is the job's live one and holds what it held, its job being locked from here on."""
    await lock_scope(connection, [run.job_id])
    if await live_run_of_job(connection, run.job_id) != run.run_id:
        return False
    held = await sized_run(connection, run.run_id)
    return held is not None and held.state is RunState.RUNNING and held.held == run.held


async def tell_changed_machine(
    connection: Connection, run: ElasticRun, kind: str, gpus: int, told: str, *, now_ms: int
) -> None:
    """Of a locked job that moves to a machine on which it has so many GPUs. One that goes to a smaller machine asks for
    no more than that from then on, whatever it was to have before."""
    if kind == SMALLER:
        resources = await grown_resources(connection, run.job_id, gpus)
        if resources is not None:
            await change_job(connection, run.job_id, {"resources": resources})
    data = {"run_id": run.run_id, "gpus": gpus, "gpus_before": run.held.wanted}
    await add_job_event(connection, run.job_id, Event(kind, told, data), now_ms=now_ms)
