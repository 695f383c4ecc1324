"""Have a job stand by: it saves and leaves its GPUs, which are lent until its window is over."""

from __future__ import annotations

from app.core.borrowing import PoolQuotas
from app.core.calendar import written
from app.core.model.job import TERMINAL_JOB_STATES, JobState, PriorityClass
from app.core.model.node import NodeState
from app.core.model.pool import JOINED, Pool
from app.core.model.run import RunPurpose, RunState
from app.core.saving import HOW_TO_SAVE
from app.db.checkpoints.unsaved import at_risk
from app.db.connection import Connection
from app.db.jobs.set_asides import classed_jobs
from app.db.jobs.steering import lock_standing
from app.db.lock_order import lock_scope
from app.db.moves.planned_moves import open_move_of_job
from app.db.nodes.lifecycle import NodeRow, read_node
from app.db.pools.pools import find_pool, read_pools
from app.db.runs.evictable_runs import pool_uses, runs_on
from app.db.runs.live_runs import RunRow, live_run_of_job, lock_run
from app.db.standby.standbys import StandbyRow, add_standby, change_standby, host_of_node, open_standby_of
from app.db.transitions import Event, add_job_event
from app.errors import Conflict, InvalidInput, NotFound
from app.ports.clock import IdSource
from app.services.jobs.compose_job import deadline_ms
from app.services.moves.ask_to_save import ask_to_save

NOT_LENDABLE = "not_lendable"
STANDS_BY = "stands_by"
SHORTEST_MS, LONGEST_MS = 60_000, 7 * 24 * 3_600_000


async def begin_standby(
    connection: Connection,
    ids: IdSource,
    project_id: str,
    job_id: str,
    *,
    until_ms: int,
    lose_steps: bool = False,
    now_ms: int,
) -> StandbyRow:
    """The job saves and leaves its machine, which stays; its GPUs go to spot jobs until then, and it comes back.

    A job that stands by, or is about to, has its window changed. Raises NotFound; InvalidInput for an end that is too
    near or too far (`param` is `until`); and Conflict: for a job that does not run, that is called back already, or
    whose `max_duration` would be over before; as `not_lendable` for one whose GPUs cannot be lent, with what would have
    to change.
    """
    await lock_scope(connection, [job_id])
    job = await lock_standing(connection, job_id, project_id=project_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    if job.state in TERMINAL_JOB_STATES:
        raise Conflict(f"{job_id} has {job.state}: it has no GPUs to lend")
    _check_window(until_ms, now_ms)
    if job.max_duration_ms is not None and job.first_running_ms is not None:
        ends_ms = job.first_running_ms + job.max_duration_ms
        if ends_ms <= until_ms:
            raise Conflict(
                f"until: {job_id} is cancelled when its max_duration is over, at {written(ends_ms)}, and the time in "
                f"which it stands by counts: end the window before, or raise max_duration first",
                param="until",
            )
    before = await open_standby_of(connection, job_id)
    if before is not None:
        return await _moved(connection, before, until_ms, now_ms=now_ms)
    if job.state is not JobState.RUNNING or job.pause_reason is not None:
        raise Conflict(f"{job_id} is {job.state}, and only a job that runs has GPUs to lend: try again when it runs")
    run, node = await _its_place(connection, job_id)
    pool = await _check_place(connection, job_id, run, node)
    await _check_saves(connection, job_id, lose_steps, now_ms=now_ms)
    risk = await at_risk(connection, job_id, now_ms=now_ms)
    row = StandbyRow(
        standby_id=ids.new("stby"),
        project_id=project_id,
        job_id=job_id,
        node_id=node.node_id,
        gpus=node.offer.gpu_count,
        rebate_parts=pool.rebate_parts,
        lose_steps=lose_steps,
        left_step=risk.step,
        asked_ms=now_ms,
        until_ms=until_ms,
    )
    await add_standby(connection, row)
    why = f"its owner lends its GPUs until {written(until_ms)}: saves at the next step, leaves and stands by"
    await ask_to_save(connection, job_id, why if risk.loss is None else f"{why}; {risk.loss}", now_ms=now_ms)
    await add_job_event(connection, job_id, _told(row, node), now_ms=now_ms)
    return row


def read_until(text: str, now_ms: int) -> int:
    """The end of a window: a time from now, or an instant with its zone. Raises InvalidInput."""
    try:
        return deadline_ms(text, now_ms)
    except InvalidInput as error:
        raise InvalidInput(error.message.replace("soft_deadline", "until", 1), param="until") from None


def _check_window(until_ms: int, now_ms: int) -> None:
    if not SHORTEST_MS <= until_ms - now_ms <= LONGEST_MS:
        raise InvalidInput(
            f"until: {written(until_ms)} is not between a minute and seven days from now, {written(now_ms)}",
            param="until",
        )


async def _moved(connection: Connection, row: StandbyRow, until_ms: int, *, now_ms: int) -> StandbyRow:
    """The window of one that stands by already."""
    if row.called_ms is not None or row.over_why is not None:
        raise Conflict(f"{row.job_id} is called back already: have it stand by again when it runs")
    if until_ms == row.until_ms:
        return row
    await change_standby(connection, row.standby_id, until_ms=until_ms)
    data = {"standby_id": row.standby_id, "until_ms": until_ms, "until_before_ms": row.until_ms}
    told = f"stands by until {written(until_ms)}, not {written(row.until_ms)}"
    await add_job_event(connection, row.job_id, Event(STANDS_BY, told, data), now_ms=now_ms)
    found = await open_standby_of(connection, row.job_id)
    assert found is not None  # it is locked with its job
    return found


async def _its_place(connection: Connection, job_id: str) -> tuple[RunRow, NodeRow]:
    run_id = await live_run_of_job(connection, job_id)
    run = None if run_id is None else await lock_run(connection, run_id)
    node = None if run is None else await read_node(connection, run.node_id)
    if run is None or node is None or run.state is not RunState.RUNNING:
        raise Conflict(f"{job_id} is on its way to a place or off it: try again when it runs")
    return run, node


async def _check_place(connection: Connection, job_id: str, run: RunRow, node: NodeRow) -> Pool:
    """Of its machine, which is a pool's and the job's alone. Raises Conflict for any other."""
    classed = (await classed_jobs(connection, [job_id]))[job_id]
    if classed.priority_class is PriorityClass.SPOT:
        _refuse(job_id, "it is a spot job, which leaves anyway when a guaranteed job needs its GPUs: pause it instead")
    found = await find_pool(connection, node.offer.region) if node.provider == JOINED else None
    if found is None or await host_of_node(connection, node.node_id) is None:
        where = f"{node.provider} {node.offer.gpu_type}"
        _refuse(
            job_id, f"it runs on {where}, and only GPUs of hosts that have joined a pool can be lent: pause it instead"
        )
    if run.node_rank is not None:
        _refuse(job_id, "it runs on several machines: pause it instead")
    if len(run.job_ids) > 1 or run.purpose is not RunPurpose.TRAIN:
        _refuse(job_id, "its process is shared with another job: try again when it trains alone")
    if (await runs_on(connection, [node.node_id])).get(node.node_id, 0) > 1:
        _refuse(job_id, "other jobs run on its machine, which can be lent as a whole only: try again when it is alone")
    if await open_move_of_job(connection, job_id) is not None:
        _refuse(job_id, "it is on its way to another machine: try again when it has moved")
    if node.state is not NodeState.READY:
        _refuse(job_id, f"its machine is {node.state}: try again when it is ready")
    assert found is not None
    await _check_quota(connection, job_id, run, found.pool)
    return found.pool


async def _check_quota(connection: Connection, job_id: str, run: RunRow, pool: Pool) -> None:
    """What is borrowed is not lent on: whoever is sure of it could not have it back."""
    if not pool.has_quotas:
        return
    pools = [row.pool for row in await read_pools(connection)]
    quotas = PoolQuotas.of(pools, await pool_uses(connection, [pool.name]))
    if run.run_id in quotas.borrowed:
        words = quotas.words(pool.name, run.project_id)
        _refuse(
            job_id, f"its GPUs are beyond its project's quota ({words}), and others may need them: pause it instead"
        )


async def _check_saves(connection: Connection, job_id: str, lose_steps: bool, *, now_ms: int) -> None:
    risk = await at_risk(connection, job_id, now_ms=now_ms)
    why = risk.would_leave_without
    if why is None or lose_steps:
        return
    lost = "" if risk.lost is None else f", and {risk.lost} since {risk.since()} would be lost"
    way = "mend that and wait for the next checkpoint" if risk.why is not None else f"for the next job: {HOW_TO_SAVE}"
    _refuse(job_id, f"{why}{lost}. {way[0].upper()}{way[1:]}; or say that it may begin again, with lose_steps: true")


def _refuse(job_id: str, why: str) -> None:
    raise Conflict(f"{job_id} cannot stand by: {why}", code=NOT_LENDABLE)


def _told(row: StandbyRow, node: NodeRow) -> Event:
    percent = row.rebate_parts / 10_000
    price = node.offer.price_per_hour
    gpus = f"{row.gpus} GPU{'s' * (row.gpus != 1)}"
    told = (
        f"lends its {gpus} until {written(row.until_ms)}; of {price}/h, {percent:g} % is not paid meanwhile, and none "
        "of it counts for its max_cost; its deadline stays"
    )
    data = {
        "standby_id": row.standby_id,
        "node_id": row.node_id,
        "gpus": row.gpus,
        "until_ms": row.until_ms,
        "rebate_parts": row.rebate_parts,
        "price_micros_per_hour": price.micros,
    }
    return Event(STANDS_BY, told, data)
