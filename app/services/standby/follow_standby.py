"""Call a job back to GPUs that it has lent, have others leave these, and close what is over."""

from __future__ import annotations

from app.core.model.run import RunState
from app.core.policies.reasons import duration
from app.core.standby import Holder, OverStandby, StandbyView
from app.db.connection import Connection
from app.db.jobs.steering import lock_standing
from app.db.lock_order import lock_nodes, tenants_of
from app.db.pools.hosts import lock_host
from app.db.runs.evictable_runs import set_evicted
from app.db.runs.live_runs import live_runs_of_node, lock_run
from app.db.standby.standbys import StandbyRow, change_standby, host_of_node, open_standby_of
from app.db.transitions import Event, add_job_event
from app.errors import Conflict, NotFound
from app.ports.clock import IdSource
from app.services.moves.ask_to_leave import ask_to_leave
from app.services.moves.leave_machine import leave_machine
from app.services.nodes.release_node import release_node

CALLED_BACK, IS_BACK, STANDBY_OVER = "called_back", "back_from_standby", "standby_over"
OWNER_CALLS, WINDOW_ENDS = "its owner calls it back", "its window is over"
_NO_CODE_YET = (RunState.ASSIGNED, RunState.STARTING)
_LEAVES = "the job that has lent these GPUs is called back"


async def end_standby(connection: Connection, project_id: str, job_id: str, *, now_ms: int) -> StandbyRow:
    """Call the job back now. One that is called back already stays as it is. Raises NotFound, and Conflict for a job
    that does not stand by."""
    if await lock_standing(connection, job_id, project_id=project_id) is None:
        raise NotFound(f"there is no job {job_id!r} in this project")
    row = await open_standby_of(connection, job_id)
    if row is None:
        raise Conflict(f"{job_id} does not stand by (allpass standby {job_id} --until 8h has it do so)")
    return await _call(connection, row, OWNER_CALLS, now_ms=now_ms)


async def call_back(connection: Connection, standby: StandbyView, *, now_ms: int) -> bool:
    """Its window is over, as far as that still holds under its lock; whether it is called now."""
    await lock_standing(connection, standby.job_id)
    row = await open_standby_of(connection, standby.job_id)
    if row is None or row.called_ms is not None or row.until_ms > now_ms:
        return False
    await _call(connection, row, WINDOW_ENDS, now_ms=now_ms)
    return True


async def _call(connection: Connection, row: StandbyRow, why: str, *, now_ms: int) -> StandbyRow:
    """From now on nothing new is given its GPUs: machines are ordered under the lock of their host, too."""
    if row.called_ms is not None or row.over_why is not None:
        return row
    host_id = await host_of_node(connection, row.node_id)
    if host_id is not None:
        await lock_host(connection, host_id)
    await change_standby(connection, row.standby_id, called_ms=now_ms, called_why=why)
    told = f"{why}: it goes on as soon as its GPUs are free"
    await add_job_event(connection, row.job_id, Event(CALLED_BACK, told, {"standby_id": row.standby_id}), now_ms=now_ms)
    found = await open_standby_of(connection, row.job_id)
    assert found is not None  # it is locked with its job
    return found


async def clear_holder(
    connection: Connection, ids: IdSource, standby: StandbyView, holder: Holder, *, now_ms: int
) -> None:
    """Whoever is on a machine on these GPUs saves and leaves; one that nobody is on ends. Repeating it is harmless: who
    leaves already is let."""
    await lock_nodes(connection, [holder.node_id], tenants_of, reach=True)
    await leave_machine(connection, ids, holder.node_id, _LEAVES, now_ms=now_ms)
    left = await live_runs_of_node(connection, holder.node_id)
    for run_id in left:
        run = await lock_run(connection, run_id)
        if run is None:
            continue
        if run.state in _NO_CODE_YET:
            await ask_to_leave(connection, ids, run.job_ids[0], _LEAVES, now_ms=now_ms)
        await set_evicted(connection, run_id, standby.job_id)
    if not left:
        await release_node(connection, ids, holder.node_id, _LEAVES, now_ms=now_ms)


async def give_up(connection: Connection, over: OverStandby, *, now_ms: int) -> None:
    """The job does not come back to its machine, which ends when it is seen again."""
    await lock_standing(connection, over.standby.job_id)
    row = await open_standby_of(connection, over.standby.job_id)
    if row is not None and row.standby_id == over.standby.standby_id and row.over_why is None:
        called_ms = now_ms if row.called_ms is None else row.called_ms
        await change_standby(connection, row.standby_id, over_why=over.why, called_ms=called_ms)


async def close_standby(connection: Connection, over: OverStandby, *, now_ms: int) -> None:
    """Nothing is left to be done. Where the job is back its owner is told how long that took."""
    await lock_standing(connection, over.standby.job_id)
    row = await open_standby_of(connection, over.standby.job_id)
    if row is None or row.standby_id != over.standby.standby_id:
        return
    columns = {"ended_ms": now_ms, "ended_why": over.why, "called_ms": row.called_ms or now_ms}
    if over.is_back:
        columns["back_ms"] = over.standby.running_ms or now_ms
    await change_standby(connection, row.standby_id, **columns)
    await add_job_event(connection, row.job_id, _told(row, over, now_ms), now_ms=now_ms)


def _told(row: StandbyRow, over: OverStandby, now_ms: int) -> Event:
    data: dict[str, object] = {"standby_id": row.standby_id, "left_ms": row.left_ms}
    if not over.is_back or row.called_ms is None or row.left_ms is None:
        return Event(STANDBY_OVER, f"stands by no more: {over.why}", data)
    running_ms = over.standby.running_ms or now_ms
    took_ms, lent_ms = max(0, running_ms - row.called_ms), max(0, row.called_ms - row.left_ms)
    told = f"trains again {duration(took_ms)} after its call; its GPUs were lent for {duration(lent_ms)}"
    return Event(IS_BACK, told, data | {"took_ms": took_ms, "lent_ms": lent_ms})
