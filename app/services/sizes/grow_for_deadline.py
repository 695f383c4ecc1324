"""A job that would miss its deadline saves, leaves, and goes on with more GPUs of another machine."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.elastic.deadlines import DeadlineGrowth
from app.core.elastic.runs import ElasticRun
from app.core.model.run import RunState
from app.core.policies.reasons import duration
from app.db.connection import Connection
from app.db.jobs.steering import change_job
from app.db.lock_order import lock_scope
from app.db.moves.planned_moves import open_move_of_job
from app.db.runs.grown import GrownJob, grown_resources
from app.db.runs.live_runs import live_run_of_job
from app.db.runs.sizes import sized_run
from app.db.transitions import Event, add_job_event
from app.services.moves.ask_to_save import ask_to_save

GROWS, BEGINS_SMALLER = "grows_for_deadline", "begins_smaller"


@dataclass(frozen=True, slots=True)
class PlannedGrowth:
    run: ElasticRun
    growth: DeadlineGrowth


async def grow_by_moving(connection: Connection, planned: PlannedGrowth, *, now_ms: int) -> bool:
    """Whether it was asked to. False, with nothing written, where it is not what was decided on any more."""
    run, growth = planned.run, planned.growth
    await lock_scope(connection, [run.job_id])
    resources = await grown_resources(connection, run.job_id, growth.to.gpus)
    if resources is None or await live_run_of_job(connection, run.job_id) != run.run_id:
        return False
    held = await sized_run(connection, run.run_id)
    if held is None or held.state is not RunState.RUNNING or held.held != run.held:
        return False
    if await open_move_of_job(connection, run.job_id) is not None:
        return False
    await change_job(connection, run.job_id, {"resources": resources})
    told = (
        f"would miss its deadline by {duration(int(growth.late_s) * 1000)} with {run.held.wanted} "
        f"GPU{'s' * (run.held.wanted > 1)}: saves, leaves and goes on with {growth.to.gpus}, which are done "
        f"{duration(int(growth.early_s) * 1000)} before it"
    )
    data = {"run_id": run.run_id, "gpus": growth.to.gpus, "gpus_before": run.held.wanted}
    await ask_to_save(connection, run.job_id, told, now_ms=now_ms)
    await add_job_event(connection, run.job_id, Event(GROWS, told, data), now_ms=now_ms)
    return True


async def begin_smaller(connection: Connection, job: GrownJob, *, now_ms: int) -> bool:
    """A job that has waited in vain for the machine that it was to have for its deadline begins with what it needs."""
    await lock_scope(connection, [job.job_id])
    resources = await grown_resources(connection, job.job_id, None)
    if resources is None:
        return False
    await change_job(connection, job.job_id, {"resources": resources})
    told = f"no machine with {job.gpus} GPUs came in time: begins with {job.least}, as it asks for"
    await add_job_event(connection, job.job_id, Event(BEGINS_SMALLER, told, {"gpus": job.least}), now_ms=now_ms)
    return True
