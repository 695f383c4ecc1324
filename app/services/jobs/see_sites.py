"""Where machines reach each other, and how fast: what a plan over several of them goes by."""

from __future__ import annotations

from app.core.exchange import network_of
from app.core.machine_options import Sites, by_site
from app.core.model.pool import JOINED
from app.core.topology import SwitchRule, domains_of
from app.db.connection import Connection
from app.db.pools.offers import gpus_left
from app.db.pools.switches import racks_and_switches
from app.db.reading.meetings import meetings_at
from app.db.reading.plannable import Plannable

_GIGA = 1_000_000_000


async def see_sites(
    connection: Connection, listed: Plannable, stated_gbits: float | None, rule: SwitchRule = SwitchRule.FEWEST
) -> Sites:
    """Of the sites of these offers alone, so that none is named that the project may not use. `stated_gbits`: what
    whoever asks says of their network, which counts before what was measured. `rule`: as it is decided by."""
    stated = None if stated_gbits is None else max(1, round(stated_gbits * _GIGA))
    usual = network_of((), stated)
    sites = by_site(listed.offers, listed.networked or ())
    if not sites:
        return Sites(listed.networked, {}, usual)
    met = await meetings_at(connection, sites.keys()) if stated is None else {}
    networks = {site: network_of(meetings) for site, meetings in met.items()}
    own = {one.host.partition("/")[0] for offers in sites.values() for one in offers if one.provider == JOINED}
    domains = domains_of(await racks_and_switches(connection, own)) if own else {}
    return Sites(listed.networked, networks, usual, await gpus_left(connection), domains, rule)
