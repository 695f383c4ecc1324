"""Have a job on more or fewer machines because its owner wants it, also while it runs (ADR 0131)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.gang_wishes import WANTED, with_nodes
from app.core.model.job import PLACEABLE_JOB_STATES, TERMINAL_JOB_STATES, JobState
from app.core.model.money import Money
from app.core.model.run import RunState
from app.db.checkpoints.unsaved import at_risk
from app.db.connection import Connection
from app.db.defragmentation.defragmentations import is_coming_together
from app.db.jobs.steering import change_job
from app.db.lock_order import lock_scope
from app.db.merging.merges import open_merge_of
from app.db.moves.planned_moves import open_move_of_job
from app.db.reading.explanations import last_event
from app.db.reading.sizes import MACHINES_CHANGED
from app.db.runs.layouts import cut_of
from app.db.runs.live_runs import live_run_of_job
from app.db.runs.machine_counts import SpreadJob, SpreadRun, spread_job, spread_run
from app.db.standby.standbys import open_standby_of
from app.db.transitions import Event, add_job_event
from app.errors import Conflict, NotFound
from app.services.jobs.pause_job import WOULD_LOSE_STEPS
from app.services.moves.ask_to_save import ask_to_save
from app.services.sizes.admit_nodes import AdmittedNodes, check_work, is_recipe, needs_of
from app.services.sizes.resize_job import NOT_ELASTIC

RESIZE_ASKED, RESIZE_WAITS = "resize_asked", "resize_waits"
_BY_HAND = "pause the job, resize it and resume it"


async def resize_nodes(
    connection: Connection, project_id: str, job_id: str, admitted: AdmittedNodes, *, now_ms: int
) -> None:
    """From now on the job is to be on so many machines. One that does not run begins on them. One that runs goes on
    with more once those that it lacks are ready, and trains on meanwhile; to have fewer it saves, leaves, and goes on
    with some of its own. As many as it has withdraws a wish for more.

    Raises NotFound; InvalidInput (`nodes`) where it would not fit, or some would have no work; and Conflict for a job
    that is over, on its way, or leaving; whose code is not known to go on exactly on other numbers, or that is split
    over more machines (`not_elastic`); that would lose steps by leaving (`steps_would_be_lost`); or whose limit per
    hour would be passed (`param` is then `max_hourly_usd`). Then nothing has changed.
    """
    await lock_scope(connection, [job_id])
    job = await spread_job(connection, job_id, project_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    if job.state in TERMINAL_JOB_STATES:
        raise Conflict(f"{job_id} has {job.state}: it asks for no machines any more")
    run_id = await live_run_of_job(connection, job_id)
    if run_id is None and (job.state in PLACEABLE_JOB_STATES or job.state is JobState.PAUSED):
        await _ask(connection, job, admitted, now_ms=now_ms)
        return
    run = None if run_id is None else await spread_run(connection, run_id)
    if run is None or run.state is RunState.STOPPING or job.pause_reason is not None:
        raise Conflict(f"{job_id} leaves its machines just now: try again when it has")
    if run.state is not RunState.RUNNING or job.state is not JobState.RUNNING:
        raise Conflict(f"{job_id} is being started: try again when it runs")
    await _resize(connection, job, run, admitted, now_ms=now_ms)


async def tell_fewer(connection: Connection, job_id: str, why: str, *, now_ms: int) -> None:
    """A job that trains cannot have more machines yet. Told once, as long as that is why."""
    last = await last_event(connection, job_id, (RESIZE_ASKED, RESIZE_WAITS, MACHINES_CHANGED))
    if last is None or last.data.get("why") == why:
        return
    told = f"cannot go on with more machines yet: {why}. It trains on, and tries again"
    await add_job_event(connection, job_id, Event(RESIZE_WAITS, told, {"why": why}), now_ms=now_ms)


async def _ask(connection: Connection, job: SpreadJob, admitted: AdmittedNodes, *, now_ms: int) -> None:
    """Of a job that has no machines."""
    nodes, before = admitted.nodes, job.resources.nodes_wanted or job.resources.nodes
    if nodes == before == job.resources.nodes:
        return
    if await open_merge_of(connection, job.job_id) is not None:
        raise Conflict(f"{job.job_id} is trained with another job, on one machine: it is not resized until they part")
    if await open_standby_of(connection, job.job_id) is not None:
        raise Conflict(f"{job.job_id} stands by for GPUs of one machine: end that first (allpass standby --end)")
    _check_split(job, nodes)
    check_work(job, await cut_of(connection, job.job_id), nodes)
    if admitted.refused is not None:
        raise admitted.refused
    gpu = job.template.get("gpu")
    says_memory = isinstance(gpu, Mapping) and gpu.get("memory_gb") is not None
    asks = with_nodes({**job.asks, **needs_of(job.asks, admitted.predicted, says_memory=says_memory)}, nodes)
    await change_job(connection, job.job_id, {"resources": asks})
    await _tell(connection, job.job_id, nodes, before, {}, now_ms=now_ms)


async def _resize(
    connection: Connection, job: SpreadJob, run: SpreadRun, admitted: AdmittedNodes, *, now_ms: int
) -> None:
    nodes, has = admitted.nodes, job.resources.nodes
    before = job.resources.nodes_wanted or has
    if nodes == before:
        return
    if nodes != has:
        await _check_running(connection, job, run, admitted, now_ms=now_ms)
    await change_job(connection, job.job_id, {"resources": _wanting(job, nodes)})
    await _tell(connection, job.job_id, nodes, before, {"run_id": run.run_id}, now_ms=now_ms)
    if nodes < has:
        why = f"its owner wants it on {_machines(nodes)}, not {has}: saves, leaves, and goes on with {nodes} of them"
        await ask_to_save(connection, job.job_id, why, now_ms=now_ms)


async def _check_running(
    connection: Connection, job: SpreadJob, run: SpreadRun, admitted: AdmittedNodes, *, now_ms: int
) -> None:
    nodes, has, job_id = admitted.nodes, job.resources.nodes, job.job_id
    if await open_move_of_job(connection, job_id) is not None or await is_coming_together(connection, job_id):
        raise Conflict(f"{job_id} is on its way to another machine: try again when it has moved")
    if not is_recipe(job):
        raise Conflict(
            f"{job_id} keeps its machines while it runs: that it goes on with the same bytes on another number of them "
            f"is known of the built-in fine-tuning alone. For code of your own {_BY_HAND}",
            code=NOT_ELASTIC,
        )
    if await open_merge_of(connection, job_id) is not None:
        raise Conflict(f"{job_id} is trained with another job, on one machine: try again when they have parted")
    if has > 1 and not run.stops_together:
        raise Conflict(
            f"{job_id} cannot change its machines now: its code has not said that all of them stop after one step; try "
            "again when it trains",
            code=NOT_ELASTIC,
        )
    _check_split(job, nodes)
    check_work(job, await cut_of(connection, job_id), nodes)
    if admitted.refused is not None:
        raise admitted.refused
    await _check_saves(connection, job_id, now_ms=now_ms)
    hourly = Money(run.hourly.micros * nodes // max(1, run.machines))
    if job.max_hourly is not None and nodes > has and hourly > job.max_hourly:
        raise Conflict(
            f"max_hourly_usd: {nodes} machines like those that it has cost {hourly}/h, and {job_id} may cost at most "
            f"{job.max_hourly}/h: raise that first",
            param="max_hourly_usd",
        )


async def _check_saves(connection: Connection, job_id: str, *, now_ms: int) -> None:
    risk = await at_risk(connection, job_id, now_ms=now_ms)
    if risk.would_leave_without is not None and risk.lost is not None:
        raise Conflict(
            f"to leave its machines now would lose {risk.lost} of {job_id}, which is at step {risk.step}: "
            f"{risk.would_leave_without}. Wait for the next checkpoint",
            code=WOULD_LOSE_STEPS,
        )


def _check_split(job: SpreadJob, nodes: int) -> None:
    """A full fine-tuning that is split over all of its machines was let in with a share for each of these."""
    training, admitted = job.template.get("training"), job.template.get("nodes")
    told = training if isinstance(training, Mapping) else {}
    if told.get("sharded") is not True or told.get("method") != "full":
        return
    if type(admitted) is int and nodes < admitted:
        raise Conflict(
            f"{job.job_id} is split over {_machines(admitted)}, and on {nodes} each GPU would have to hold more than "
            "it was let in with: cancel it, and submit it anew with --from-checkpoint and another --nodes",
            param="nodes",
            code=NOT_ELASTIC,
        )


def _wanting(job: SpreadJob, nodes: int) -> dict[str, Any]:
    plain = {name: value for name, value in job.asks.items() if name != WANTED}
    return plain if nodes == job.resources.nodes else {**plain, WANTED: nodes}


async def _tell(
    connection: Connection, job_id: str, nodes: int, before: int, more: Mapping[str, Any], *, now_ms: int
) -> None:
    told = f"its owner wants it on {_machines(nodes)}, not {before}"
    data = {"nodes": nodes, "nodes_before": before, **more}
    await add_job_event(connection, job_id, Event(RESIZE_ASKED, told, data), now_ms=now_ms)


def _machines(count: int) -> str:
    return "1 machine" if count == 1 else f"{count} machines"
