"""How fast the machines of earlier trainings reached each other, site by site."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.exchange import Meeting
from app.core.gang_sites import Site
from app.db.tables import allocations, nodes, runs

_MOST_READ = 2_000  # of all sites, the newest


async def meetings_at(connection: AsyncConnection, sites: Collection[Site]) -> Mapping[Site, list[Meeting]]:
    """Of these sites, the newest training first. A network is its site's, whoever's training has measured it."""
    if not sites:
        return {}
    of = runs.c
    newest = (
        select(of.id, of.member_of, of.network_bits_per_s)
        .where(of.member_of.is_not(None), of.network_bits_per_s > 0)
        .order_by(of.member_of.desc())  # ids begin with their time, and this index has few rows
        .limit(_MOST_READ)
        .subquery()
    )
    rows = await connection.execute(
        select(newest.c.member_of, newest.c.network_bits_per_s, nodes.c.provider, nodes.c.tier)
        .add_columns(nodes.c.region, nodes.c.gpu_type)
        .distinct()
        .join(allocations, allocations.c.run_id == newest.c.id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .order_by(newest.c.member_of.desc())
    )
    wanted = {
        (provider, str(tier), region, gpu_type): site for site in sites for provider, tier, region, gpu_type in [site]
    }
    found: defaultdict[Site, list[Meeting]] = defaultdict(list)
    for row in rows:
        site = wanted.get((row.provider, row.tier, row.region, row.gpu_type))
        if site is not None:
            found[site].append(Meeting(row.member_of, row.network_bits_per_s))
    return dict(found)
