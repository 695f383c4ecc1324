"""A machine joins as what was rented, or not at all; and one whose GPUs fail later is given back.

Either is a failed start of the machine's, never the fault of a job: its jobs go on elsewhere, its offer is avoided and
its host remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from app.core.model.node import GONE_NODE_STATES, NodeState
from app.core.promised import (
    GpuInquiry,
    GpuReport,
    breaches,
    disk_breach,
    disk_shortage,
    free_disk_of,
    is_judged,
    report_of,
    why_not_judged,
)
from app.db.connection import Connection
from app.db.engine import Database
from app.db.nodes.agents import NodeIdentity, welcome_node
from app.db.nodes.disk_needs import checkpoint_sizes
from app.db.nodes.lifecycle import NodeRow, has_node_event, lock_node, set_lost
from app.db.text import storable_text
from app.db.transitions import Event, add_job_event, add_node_event
from app.errors import Unavailable
from app.ports.clock import IdSource
from app.services.nodes.give_machine_back import give_machine_back

log = logging.getLogger(__name__)

NOT_JUDGED = "node_not_judged"
_OVER = GONE_NODE_STATES | {NodeState.TERMINATING}
_LONGEST = 1_000
_ANSWER_WITHIN_MS = 60_000  # a create call that takes longer is looked up by the node's label


async def let_in(
    database: Database,
    ids: IdSource,
    node: NodeIdentity,
    host: Mapping[str, Any],
    *,
    promised_cuda: Mapping[str, float],
    now_ms: int,
) -> bool:
    """Make a node that calls home ready, if its machine has what its offer promised. False: it has not, and is given
    back. `promised_cuda`: by provider. Raises Unavailable while it is not known by which reference to give it back."""
    async with database.transaction() as connection:
        row = await lock_node(connection, node.node_id)
        if row is None or row.state in _OVER:
            return True  # whoever asks for its orders is told so
        report, lacks = _judge(row, host, promised_cuda.get(row.provider, 0.0))
        if lacks and _is_unanswered(row, now_ms):
            raise Unavailable("the company has not said yet which machine it rents out; call again in a moment")
        if lacks:
            await give_machine_back(connection, ids, row, f"is not what was rented: {'; '.join(lacks)}", now_ms=now_ms)
            return False
        if not is_judged(report) and not await has_node_event(connection, node.node_id, NOT_JUDGED):
            told = Event(NOT_JUDGED, f"its GPUs were not compared with its offer: {why_not_judged(report)}")
            await add_node_event(connection, node.node_id, told, now_ms=now_ms)
        await _warn_of_disk(connection, row, host, now_ms=now_ms)
        await welcome_node(connection, node, now_ms=now_ms)
        return True


async def _warn_of_disk(connection: Connection, row: NodeRow, host: Mapping[str, Any], *, now_ms: int) -> None:
    """The machine has what was promised, and its jobs may need more: that is told, for other machines have no more
    than that either."""
    if free_disk_of(host) is None or row.state is NodeState.UNREACHABLE:
        return
    for job_id, size_bytes in (await checkpoint_sizes(connection, row.node_id)).items():
        why = disk_shortage(host, size_bytes)
        if why:
            facts = {"level": "warning", "node_id": row.node_id}
            await add_job_event(connection, job_id, Event("disk_is_short", why, facts), now_ms=now_ms)


def _is_unanswered(row: NodeRow, now_ms: int) -> bool:
    """Whether the create call of the machine may be answered yet."""
    asked = row.state in {NodeState.REQUESTED, NodeState.UNKNOWN} and row.provider_ref is None
    return asked and now_ms < row.requested_ms + _ANSWER_WITHIN_MS


async def give_back_if_gpus_failed(
    database: Database, ids: IdSource, node: NodeIdentity, host: Mapping[str, Any], *, now_ms: int
) -> bool:
    """Whether the agent says that GPUs which worked do so no longer, or not since it was started again. Then its
    machine is given back."""
    fault = _fault(host)
    if not fault:
        return False
    async with database.transaction() as connection:
        row = await lock_node(connection, node.node_id)
        if row is None or row.state in _OVER:
            return False
        why = storable_text(fault[:_LONGEST])
        await set_lost(connection, node.node_id, now_ms=now_ms)
        await give_machine_back(connection, ids, row, f"has lost its GPUs: {why}", now_ms=now_ms)
        return True


def _fault(host: Mapping[str, Any]) -> str:
    """Asked at every call of every agent."""
    told, looked = host.get("gpu_fault"), host.get("nvidia_smi")
    if isinstance(looked, dict) and looked.get("state") == GpuInquiry.FAILS:
        return str(looked.get("message") or "nvidia-smi says nothing")
    return told if isinstance(told, str) else ""


def _judge(row: NodeRow, host: Mapping[str, Any], cuda: float) -> tuple[GpuReport | None, tuple[str, ...]]:
    """A mistake of ours in here keeps no machine out: it would be paid for, and never work."""
    is_new = row.state is not NodeState.UNREACHABLE  # else its disk holds what jobs have put there
    try:
        report = report_of(host)
        lacks = breaches(row.offer, report, cuda=cuda) if report is not None else ()
        disk = disk_breach(row.offer, host) if is_new else ""
    except Exception:
        log.exception("what the machine of %s has cannot be compared with its offer", row.node_id)
        return None, ()
    return report, (*lacks, disk) if disk else lacks
