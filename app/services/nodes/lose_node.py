"""A node is gone, or given up: what ran there goes on elsewhere."""

from __future__ import annotations

from typing import Any

from app.core.lifecycle import Outcome, after_fault
from app.core.model.job import JobEnd, JobState
from app.core.model.run import RunEnd
from app.db.connection import Connection
from app.db.lock_order import lock_nodes, tenants_of
from app.db.nodes.lifecycle import read_node, set_lost
from app.db.runs.live_runs import faults_of, live_runs_of_node, lock_run
from app.ports.clock import IdSource
from app.services.nodes.release_node import release_node
from app.services.runs.end_run import end_run


async def lose_node(
    connection: Connection,
    ids: IdSource,
    node_id: str,
    message: str,
    *,
    now_ms: int,
    fault_budget: int,
    outage: bool = False,
    interrupted: bool = False,
) -> bool:
    """A node is gone or given up: fence and hand on its runs first, then end whatever is left of it.

    `outage`: its provider went down, with every machine there was. That uses up no job's fault budget, and says nothing
    about how long machines live. `interrupted`: it was bid for, and its provider gave it to somebody who pays more.
    That is no fault either, and does say how long such machines live; its jobs rather take another host for a while.

    The machine is terminated at the provider even when it looks dead: what we cannot reach may still cost.
    """
    await lock_nodes(connection, [node_id], tenants_of, reach=True)
    lost = await read_node(connection, node_id) if interrupted else None
    offer_key = None if lost is None else lost.offer.key
    if not outage:
        await set_lost(connection, node_id, now_ms=now_ms)
    for run_id in await live_runs_of_node(connection, node_id):
        run = await lock_run(connection, run_id)
        if run is None:
            continue
        faults = await faults_of(connection, run.job_ids)
        outcome = after_fault(message, RunEnd.NODE_LOST, JobEnd.NODE_LOST, faults=faults, fault_budget=fault_budget)
        left: dict[str, Any] = {}
        if outage or interrupted:
            outcome = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, False, message, interrupted=interrupted)
        if interrupted and offer_key is not None:
            left = {"avoid_offer": offer_key, "not_before_ms": now_ms}
        await end_run(connection, ids, run_id, outcome, now_ms=now_ms, **left)
    return await release_node(connection, ids, node_id, message, now_ms=now_ms)
