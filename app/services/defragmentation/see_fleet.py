"""The fleet as a defragmentation sees it: the snapshot of decisions, and what that does not show, of one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.defragmentation import MoveHabits, SeenFleet
from app.core.gang_wishes import is_gang
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.node import ProviderTraits
from app.core.topology import domains_of
from app.db.connection import Connection
from app.db.decisions.snapshots import Memory, freeze, read_snapshot
from app.db.defragmentation.fleet import held_gpus_of_runs, host_names, move_habits, node_facts
from app.db.engine import Database
from app.db.jobs.set_asides import nodes_on, set_asides
from app.db.pools.hosts import seen_hosts
from app.db.pools.pools import read_pools
from app.db.pools.switches import racks_and_switches
from app.db.reservations.kept_gpus import kept_places
from app.db.runs.members import gang_nodes
from app.db.standby.standbys import open_standbys
from app.services.defragmentation.step_gains import step_gains
from app.settings import Settings


async def see_fleet(
    database: Database,
    settings: Settings,
    *,
    now_ms: int,
    traits: Sequence[ProviderTraits] = (),
    kept_hosts: Mapping[str, str] | None = None,
    memory: Memory | None = None,
) -> SeenFleet:
    """`kept_hosts`: places of hosts that are kept for jobs on several machines, by whose they are. Machines that end by
    themselves soon are not ready in it. `memory`: of whoever looks again and again: what has not changed is not read
    again."""
    async with database.transaction() as connection:
        await freeze(connection)
        snapshot = await read_snapshot(
            connection,
            now_ms,
            traits,
            settings.offers_gone_after_ms,
            usual_image=settings.node_image,
            lifetime_margin_ms=round(settings.lifetime_margin_s * 1000),
            memory=memory,
        )
        aside_for = {one.place: one.job_id for one in await set_asides(connection, now_ms=now_ms)}
        asides = frozenset(aside_for)
        every = {job.job_id: job for job in snapshot.jobs if is_gang(job)}
        gangs = {job_id for job_id, job in every.items() if job.state in PLACEABLE_JOB_STATES}
        rented = await gang_nodes(connection, every)
        on_them = await nodes_on(connection, asides) if asides else []
        domains = domains_of(await racks_and_switches(connection)) if every else {}
        return SeenFleet(
            snapshot=snapshot,
            habits=await _habits(connection, settings),
            pools=tuple(row.pool for row in await read_pools(connection)),
            hosts=tuple(await seen_hosts(connection, now_ms=now_ms)),
            names=await host_names(connection),
            held=await held_gpus_of_runs(connection),
            facts=await node_facts(connection),
            kept=asides | {one.node_id for one in on_them} | await _lent(connection) | await kept_places(connection),
            kept_hosts=kept_hosts or {},
            domains=domains,
            provided=frozenset(gangs & ({one.job_id for one in rented} | set(aside_for.values()))),
            rented=tuple(rented),
            rule=settings.gang_switches,
            gains_ms=await step_gains(connection, rented, domains),
        )


async def _lent(connection: Connection) -> frozenset[str]:
    """Machines whose jobs stand by, and where they are: what is free there is lent, and is given back."""
    nodes = {one.node_id for one in await open_standbys(connection)}
    facts = await node_facts(connection) if nodes else {}
    return frozenset({*nodes, *(facts[node_id].place for node_id in nodes if node_id in facts)} - {""})


async def _habits(connection: Connection, settings: Settings) -> MoveHabits:
    pause_ms = round((settings.move_save_s + settings.move_load_s) * 1000)
    return await move_habits(connection, pause_ms=pause_ms, prepare_ms=round(settings.move_prepare_s * 1000))
