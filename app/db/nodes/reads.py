"""Reading nodes for their owners, and the health of the parts behind the API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, desc, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.downloads import download_mbps
from app.core.foreign import read_as
from app.core.gpu_checks import Checked, gpu_check_of
from app.core.model.node import GONE_NODE_STATES, NodeState, Tier
from app.core.model.run import RunState
from app.db.arrays import is_one_of
from app.db.bids import is_bid
from app.db.tables import allocations, leader_leases, node_heartbeats, nodes, run_jobs, runs


@dataclass(frozen=True, slots=True)
class NodeDetails:
    id: str
    provider: str
    tier: str
    state: str
    gpu_type: str
    gpu_count: int
    gpu_memory_bytes: int
    region: str
    price_micros_per_hour: int
    requested_ms: int
    ready_ms: int | None
    ended_ms: int | None
    metered_micros: int
    end_message: str | None
    rented_for_job_id: str | None
    download_mbps: float | None
    gpus_checked: Checked | None
    interruptible: bool


_TOLD = ("download_mbps", "gpus_checked")  # by its agent
_OF_OFFER = is_bid().label("interruptible")
_COLUMNS = (
    *(nodes.c[name] for name in NodeDetails.__dataclass_fields__ if name not in {*_TOLD, _OF_OFFER.name}),
    _OF_OFFER,
)


async def list_nodes(
    connection: AsyncConnection, project_id: str, *, include_gone: bool, before: str | None, limit: int
) -> list[NodeDetails]:
    """Newest first, of those with ids below `before`."""
    report = node_heartbeats.c.report
    statement = (
        select(*_COLUMNS, report["host"]["download"].label("download"), report["host"]["gpu_check"].label("check"))
        .outerjoin(node_heartbeats, node_heartbeats.c.node_id == nodes.c.id)
        .where(nodes.c.project_id == project_id)
    )
    if not include_gone:
        statement = statement.where(nodes.c.state.not_in(GONE_NODE_STATES))
    if before is not None:
        statement = statement.where(nodes.c.id < before)
    rows = await connection.execute(statement.order_by(desc(nodes.c.id)).limit(limit))
    return [_row(row) for row in rows]


def _row(row: Row[*tuple[Any, ...]]) -> NodeDetails:
    known = {name: value for name, value in row._mapping.items() if name in NodeDetails.__dataclass_fields__}
    known |= {"tier": read_as(Tier, row.tier), "state": read_as(NodeState, row.state)}
    check = gpu_check_of({"gpu_check": row.check})
    mbps = download_mbps({"download": row.download})
    return NodeDetails(
        **known,
        download_mbps=None if mbps is None else round(mbps, 1),
        gpus_checked=None if check is None else check.result,
    )


async def jobs_on(connection: AsyncConnection, node_ids: Sequence[str]) -> dict[str, list[str]]:
    """The jobs that hold GPUs of these nodes now, by node, ascending."""
    statement = (
        select(allocations.c.node_id, run_jobs.c.job_id)
        .distinct()
        .join(runs, runs.c.id == allocations.c.run_id)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .where(
            is_one_of(allocations.c.node_id, node_ids), allocations.c.to_ms.is_(None), runs.c.state != RunState.ENDED
        )
        .order_by(run_jobs.c.job_id)
    )
    found: dict[str, list[str]] = {}
    for row in await connection.execute(statement):
        found.setdefault(row.node_id, []).append(row.job_id)
    return found


async def control_is_led(connection: AsyncConnection) -> bool:
    """Whether some process holds an unexpired leader lease: without one, jobs wait. Also proves the database alive."""
    statement = select(func.count()).where(leader_leases.c.expires_at > func.now())
    count: int = (await connection.execute(statement)).scalar_one()
    return count > 0
