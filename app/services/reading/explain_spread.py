"""How close to each other the machines of a job on several are, for whoever asks why it is where it is."""

from __future__ import annotations

from app.core.explaining.facts import Remark
from app.core.explaining.spread import SeenSeat, bound_of, chosen_by, spread_of
from app.core.model.job import MostUnderOne
from app.core.topology import domains_of
from app.db.connection import Connection
from app.db.pools.switches import racks_and_switches
from app.db.reading.explanations import last_event
from app.db.reading.gang_seats import seats_of


async def explain_spread(connection: Connection, job_id: str, most: MostUnderOne) -> tuple[Remark, ...]:
    """Racks and switches are as their labels say now. `most`: how many the job asks to have under one."""
    rows = await seats_of(connection, job_id)
    hosts = {row.host_id for row in rows if row.host_id is not None}
    domains = domains_of(await racks_and_switches(connection, hosts)) if hosts else {}
    seats = [
        SeenSeat(
            row.rank,
            None if row.host_id is None else domains.get(row.host_id, ("", ""))[1],
            row.network_bits_per_s,
            domains.get(row.host_id or "", ("", ""))[0],
        )
        for row in rows
    ]
    rented = await last_event(connection, job_id, ("node_rented",)) if domains and len(seats) > 1 else None
    rule = None if rented is None else rented.data.get("switches_chosen_by")
    return (*spread_of(seats), *bound_of(seats, most), *(() if rule is None else (chosen_by(str(rule)),)))
