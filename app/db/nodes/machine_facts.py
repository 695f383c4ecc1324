"""What agents have told of their machines lately: what one machine tells is compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.downloads import download_mbps
from app.core.gpu_checks import Checked, gpu_check_of
from app.db.tables import node_heartbeats, nodes

_LATEST = 200  # nodes that are looked at: ids begin with the time, so these are a walk along the key


async def recent_downloads(connection: AsyncConnection, provider: str, *, but_host: str, since_ms: int) -> list[float]:
    """What other hosts of the provider have measured since then, in Mbit/s, each host once, the newest first."""
    rows = await connection.execute(
        select(nodes.c.host, node_heartbeats.c.report)
        .join(node_heartbeats, node_heartbeats.c.node_id == nodes.c.id)
        .where(nodes.c.provider == provider, nodes.c.host != but_host, nodes.c.requested_ms >= since_ms)
        .order_by(nodes.c.id.desc())
        .limit(_LATEST)
    )
    found: dict[str, float] = {}
    for host, report in rows:
        measured = download_mbps(_host(report))
        if measured is not None:
            found.setdefault(host, measured)
    return list(found.values())


async def recent_checks(connection: AsyncConnection, image: str, *, but_node: str, since_ms: int) -> list[Checked]:
    """How first calculations with this image went on other machines since then, the newest first."""
    rows = await connection.execute(
        select(node_heartbeats.c.report)
        .join(nodes, node_heartbeats.c.node_id == nodes.c.id)
        .where(nodes.c.image == image, nodes.c.id != but_node, nodes.c.requested_ms >= since_ms)
        .order_by(nodes.c.id.desc())
        .limit(_LATEST)
    )
    checks = (gpu_check_of(_host(report)) for report in rows.scalars())
    return [check.result for check in checks if check is not None]


def _host(report: Any) -> Mapping[str, Any]:
    host = report.get("host") if isinstance(report, Mapping) else None
    return host if isinstance(host, Mapping) else {}
