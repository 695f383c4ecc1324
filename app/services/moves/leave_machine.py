"""A machine is being taken away: what runs on it saves now, and goes on with what was prepared for it by then.

In this order, the first that can be had: a target that is prepared (it asks by itself); one whose machine is there,
which goes on as soon as it is prepared; the final save alone, after which the job waits for a place.
"""

from __future__ import annotations

from app.core.model.move import MoveState
from app.core.model.node import NodeState
from app.core.model.run import RunState
from app.db.checkpoints.unsaved import have_never_saved
from app.db.connection import Connection
from app.db.decisions.enactment import node_tier
from app.db.moves.planned_moves import MoveRow, open_move_of_run
from app.db.runs.live_runs import RunRow, live_runs_of_node, lock_run
from app.ports.clock import IdSource
from app.services.moves.advance_move import ask_source, drop_move
from app.services.moves.ask_to_save import ask_to_save

_LEAVING = frozenset({RunState.STOPPING, RunState.ENDED})


async def leave_machine(
    connection: Connection,
    ids: IdSource,
    node_id: str,
    why: str,
    *,
    now_ms: int,
    asks: bool = True,
    lets_run: bool = False,
) -> None:
    """The caller holds the node's lock (`lock_nodes`). Repeating it is harmless.

    `lets_run`: a job that would lose all it has done is not asked, and has what is left of the machine's time.
    Not `asks`: the agent asks its processes by itself, as it does when its machine is told to end. A run whose code
    does not run yet is left alone: there is nothing to save, and it is asked as soon as there is.
    """
    for run_id in await live_runs_of_node(connection, node_id):
        run = await lock_run(connection, run_id)
        if run is None or run.state in _LEAVING:
            continue
        move = await open_move_of_run(connection, run_id)
        if move is not None and await _has_a_target(connection, ids, run, move, why, now_ms=now_ms):
            continue
        if asks and not (lets_run and await have_never_saved(connection, run.job_ids)):
            await _ask(connection, ids, run, f"{why}: saves at the next step and goes on elsewhere", now_ms=now_ms)


async def call_off_targets(connection: Connection, ids: IdSource, node_id: str, why: str, *, now_ms: int) -> None:
    """No move goes to a machine that ends. The caller holds the node's lock."""
    for run_id in await live_runs_of_node(connection, node_id):
        move = await open_move_of_run(connection, run_id)
        if move is not None and move.target_run_id == run_id:
            await drop_move(connection, ids, move.job_id, why, now_ms=now_ms)


async def _has_a_target(
    connection: Connection, ids: IdSource, run: RunRow, move: MoveRow, why: str, *, now_ms: int
) -> bool:
    """Whether the run leaves by its move, or was the target of one: that is called off then."""
    if run.run_id == move.target_run_id:
        return await _is_called_off(connection, ids, move, why, now_ms=now_ms)
    if move.state is not MoveState.PREPARING:
        return True
    node = await node_tier(connection, move.target_node_id)
    if node is None or node[0] is not NodeState.READY or run.state is not RunState.RUNNING:
        return False
    told = f"{why}: saves at the next step, and goes on when its next machine is prepared"
    return await ask_source(connection, ids, move.target_run_id, now_ms=now_ms, told=told)


async def _is_called_off(connection: Connection, ids: IdSource, move: MoveRow, why: str, *, now_ms: int) -> bool:
    """False for a target that has the job already: it is left like any other run."""
    if move.state is MoveState.PROMOTING:
        return False
    await drop_move(connection, ids, move.job_id, why, now_ms=now_ms)
    return True


async def _ask(connection: Connection, ids: IdSource, run: RunRow, why: str, *, now_ms: int) -> None:
    """A target that comes too late is called off: its source must not wait for it."""
    for job_id in run.job_ids:
        await drop_move(connection, ids, job_id, why, now_ms=now_ms)
    if run.state is RunState.RUNNING:
        await ask_to_save(connection, run.job_ids[0], why, now_ms=now_ms)
