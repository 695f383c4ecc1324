"""Machines that end by themselves: at the limit of their provider, or with their lease.

A run on one of them saves and goes on elsewhere in time, by itself. What holds nothing is given back.
"""

from __future__ import annotations

from app.control.parts import ControlParts, as_ms
from app.core.model.node import NodeState
from app.core.model.run import RunState
from app.core.policies.reasons import duration
from app.db.handles import Connection
from app.db.lifetimes import ending_nodes
from app.db.node_lifecycle import NodeRow, lock_node
from app.db.runs import RunRow, live_runs_of_node, lock_run
from app.services.advance_move import drop_move
from app.services.ask_to_save import ask_to_save
from app.services.release_node import release_node

_LEAVING = frozenset({RunState.STOPPING, RunState.ENDED})


async def leave_in_time(parts: ControlParts) -> int:
    """Deal with every ready node whose end is near, each in its own transaction; returns how many there were."""
    now_ms = parts.clock.now_ms()
    margin_ms = as_ms(parts.settings.lifetime_margin_s)
    async with parts.database.transaction() as connection:
        node_ids = await ending_nodes(connection, now_ms=now_ms, margin_ms=margin_ms)
    for node_id in node_ids:
        async with parts.database.transaction() as connection:
            await parts.leader.guard(connection)
            node = await lock_node(connection, node_id)
            if node is not None and node.state is NodeState.READY and node.ends_ms is not None:
                await _leave(connection, parts, node, node.ends_ms - now_ms, now_ms=now_ms)
    return len(node_ids)


async def _leave(connection: Connection, parts: ControlParts, node: NodeRow, left_ms: int, *, now_ms: int) -> None:
    ends = f"{node.provider} ends this machine in {duration(max(0, left_ms))}"
    run_ids = await live_runs_of_node(connection, node.node_id)
    if not run_ids:
        await release_node(connection, parts.ids, node.node_id, f"{ends}, and nothing runs on it", now_ms=now_ms)
        return
    for run_id in run_ids:
        run = await lock_run(connection, run_id)
        if run is not None and run.state not in _LEAVING:
            await _ask(connection, parts, run, f"{ends}: saves at the next step and goes on elsewhere", now_ms=now_ms)


async def _ask(connection: Connection, parts: ControlParts, run: RunRow, why: str, *, now_ms: int) -> None:
    """A move that is under way is called off: its target may be this machine, and its source must not wait for it.
    A run whose code does not run yet is asked once it does."""
    for job_id in run.job_ids:
        await drop_move(connection, parts.ids, job_id, why, now_ms=now_ms)
    if run.state is RunState.RUNNING:
        await ask_to_save(connection, run.job_ids[0], why, now_ms=now_ms)
