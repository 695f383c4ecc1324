"""Give a job more or fewer GPUs because its owner wants it, also while it runs."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from app.core.model.job import TERMINAL_JOB_STATES
from app.core.model.money import Money
from app.core.model.node import NodeState
from app.core.model.run import RunState
from app.core.resizing import LEAST, MOST_GPUS, GpusHeld, is_settled, resized
from app.db.connection import Connection
from app.db.decisions.enactment import held_gpus
from app.db.jobs.steering import change_job
from app.db.lock_order import lock_scope
from app.db.moves.planned_moves import open_move_of_job
from app.db.offers.listed import recent_offers
from app.db.runs.live_runs import live_run_of_job
from app.db.runs.sizes import SizedJob, SizedRun, set_run_size, sized_job, sized_run
from app.db.transitions import Event, add_job_event
from app.errors import Conflict, InvalidInput, NotFound
from app.ports.clock import IdSource
from app.services.jobs.check_gpu import check_count

_OFFERS_MS = 600_000  # as whoever begins a job anew reads them
NOT_ELASTIC, NO_ROOM = "not_elastic", "no_room"


async def resize_job(
    connection: Connection, ids: IdSource, project_id: str, job_id: str, gpus: int, *, now_ms: int
) -> None:
    """From now on the job asks for so many GPUs, wherever it begins next; of a range that is the most. Where it runs it
    goes on with so many from one of its next steps, if its training can change them: it gets more at once, and gives
    others up when it has left them.

    A job that asks for so many already stays as it is. Raises NotFound; InvalidInput; and Conflict for a job that is
    over, moving or about to change its GPUs already, whose training keeps the GPUs that it began with or is split over
    more (`not_elastic`), whose machine has not so many that are free (`no_room`), or whose limit per hour would be
    passed (`param` is then `max_hourly_usd`). Then nothing has changed.
    """
    await lock_scope(connection, [job_id])
    job = await sized_job(connection, job_id, project_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    if job.state in TERMINAL_JOB_STATES:
        raise Conflict(f"{job_id} has {job.state}: it asks for no GPUs any more")
    if gpus < job.split_over:
        raise Conflict(
            f"{job_id} has its base model split over {job.split_over} GPUs, and on {gpus} each would have to hold "
            "more than it was let in with: cancel it, and submit it anew with --from-checkpoint and another --gpu",
            param="gpus",
            code=NOT_ELASTIC,
        )
    run = await _run_of(connection, job)
    if job.resources.gpus_max == gpus and (run is None or run.held.wanted == gpus):
        return
    if run is None:
        known = await recent_offers(connection, now_ms=now_ms, max_age_ms=_OFFERS_MS, project_id=project_id)
        check_count(gpus, known, "gpus")
    elif run.held.wanted != gpus:
        await _resize(connection, ids, job, run, gpus, now_ms=now_ms)
    await change_job(connection, job_id, {"resources": _asks(job, gpus)})
    before = job.resources.gpus_max if run is None else run.held.wanted
    data = {"gpus": gpus, "gpus_before": before, **({} if run is None else {"run_id": run.run_id})}
    told = f"its owner wants it on {gpus} GPU{'s' * (gpus != 1)}, not {before}"
    await add_job_event(connection, job_id, Event("resize_asked", told, data), now_ms=now_ms)


def _asks(job: SizedJob, gpus: int) -> dict[str, Any]:
    """What its row asks for from now on. Of a range this is the most; it begins on fewer where there are no more."""
    least = gpus if job.least is None else min(job.least, gpus)
    asks = asdict(replace(job.resources, gpus_min=least, gpus_max=gpus))
    return asks if job.least is None else {**asks, LEAST: job.least}


async def _run_of(connection: Connection, job: SizedJob) -> SizedRun | None:
    """The run that is to have so many; None where the job begins anew before that matters."""
    run_id = await live_run_of_job(connection, job.job_id)
    run = None if run_id is None else await sized_run(connection, run_id)
    return None if run is None or run.state is RunState.STOPPING or job.pause_reason is not None else run


async def _resize(
    connection: Connection, ids: IdSource, job: SizedJob, run: SizedRun, gpus: int, *, now_ms: int
) -> None:
    if await open_move_of_job(connection, job.job_id) is not None:
        raise Conflict(f"{job.job_id} is on its way to another machine: try again when it has moved")
    if run.told is None or run.told.kept is not None:
        raise Conflict(f"{job.job_id} cannot change its GPUs now: {_why_not(run)}", code=NOT_ELASTIC)
    if run.asked is not None and not is_settled(run.held, run.told):
        raise Conflict(f"{job.job_id} is about to change its GPUs already: try again when it uses those it is to use")
    if gpus > MOST_GPUS:
        raise InvalidInput(f"gpus: {gpus} are too many: a training that runs has at most {MOST_GPUS}", param="gpus")
    if run.node_state is not NodeState.READY:
        raise Conflict(f"{job.job_id} cannot change its GPUs now: its machine is {run.node_state}", code=NO_ROOM)
    others = await held_gpus(connection, run.node_id) - set(run.held.indices)
    to = resized(run.held, gpus, run.node_gpus, others)
    if to is None:
        raise Conflict(_no_room(job, run, gpus, len(others)), param="gpus", code=NO_ROOM)
    _check_hourly(job, run, to)
    await set_run_size(connection, run, to, ids.new("aloc"), now_ms=now_ms)


def _why_not(run: SizedRun) -> str:
    if run.state is not RunState.RUNNING:
        return "it is being started; try again when it runs"
    if run.told is not None:
        return "it was restarted for that in this run, and could not go on so: pause the job, resize it and resume it"
    if run.restarts:
        return "its code has not saved yet, nor said that it does when it is asked to: try again when it has"
    return (
        "its code has not said that it can. The built-in fine-tuning and code that uses `allpass.training.elastic` say "
        "so once they train; any other code keeps the GPUs that it began with, unless its job says "
        "`resize_by: restart`: pause the job, resize it and resume it"
    )


def _no_room(job: SizedJob, run: SizedRun, gpus: int, others: int) -> str:
    free = run.node_gpus - others
    taken = f", and other jobs have {others} of them" if others else ""
    return (
        f"gpus: {job.job_id} cannot have {gpus} where it is: its machine has {run.node_gpus} x {run.gpu_type}{taken}. "
        f"It can have {free}; to have {gpus} on another machine, pause it, resize it and resume it"
    )


def _check_hourly(job: SizedJob, run: SizedRun, to: GpusHeld) -> None:
    price = run.price_of(len(to.indices))
    if job.max_hourly is None or price <= job.max_hourly.micros or len(to.indices) <= len(run.held.indices):
        return
    raise Conflict(
        f"max_hourly_usd: {to.wanted} GPUs of its machine cost {Money(price)}/h, and {job.job_id} may cost at most "
        f"{job.max_hourly}/h: raise that first",
        param="max_hourly_usd",
    )
