"""Hosts that have joined, as a provider's adapter asks for them: what is free, and what runs there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.pool import JOINED, HostGpu, OwnHost, Pool
from app.core.pools import ends_ms, free_of, is_held, is_open, offer_id_of, used_gpus
from app.db import notify
from app.db.connection import Connection
from app.db.engine import Database
from app.db.nodes.lifecycle import read_node
from app.db.pools.hosts import lock_host, raise_version, seen_hosts
from app.db.pools.machines import (
    HostMachine,
    add_machine,
    find_machine,
    listed_machines,
    log_tail_of,
    machines_of_node,
    set_ending,
)
from app.db.pools.offers import own_offers
from app.db.pools.pools import read_pools
from app.errors import NoCapacity, OfferGone, OutcomeUnknown, PriceMoved, Transient, Unavailable
from app.ports.clock import Clock, IdSource
from app.ports.provider import Machine, MachineRequest, MachineStatus
from app.services.kit.seal import Sealer
from workers.host.machines import PROJECT

_LISTED_FOR_MS = 900_000  # after their end
SEALED_FOR = "hosts"  # in the place of a project


class DatabaseHosts:
    """Implements `app.ports.hosts.OwnHosts` over the database that all processes share."""

    def __init__(self, database: Database, sealer: Sealer, clock: Clock, ids: IdSource) -> None:
        self._database, self._sealer, self._clock, self._ids = database, sealer, clock, ids

    async def offers(self) -> list[Offer]:
        """See `OwnHosts.offers`."""
        async with self._transaction() as connection:
            return await own_offers(connection, now_ms=self._clock.now_ms())

    async def launch(self, request: MachineRequest) -> Machine:
        """See `OwnHosts.launch`."""
        begun = False
        try:
            async with self._database.transaction() as connection:
                begun = True
                return await self._launch(connection, request, now_ms=self._clock.now_ms())
        except Unavailable as error:
            if begun:
                raise OutcomeUnknown(f"whether a machine was ordered is not known: {error.message}") from error
            raise Transient(f"the hosts of pools cannot be looked at: {error.message}") from error

    async def _launch(self, connection: Connection, request: MachineRequest, *, now_ms: int) -> Machine:
        offer = request.offer
        host_id, _, kind = offer.host.partition("/")
        if await lock_host(connection, host_id) is None:
            raise OfferGone(f"{host_id} has left its pool")
        node = await read_node(connection, request.label)
        project_id = "" if node is None else node.project_id
        is_kept = bool(project_id) and offer.offer_id == offer_id_of(
            host_id, offer.gpu_count, kind, kept_for=project_id
        )
        if not is_kept and offer.offer_id != offer_id_of(host_id, offer.gpu_count, kind, spot_only=offer.spot_only):
            raise OfferGone(f"{host_id} has no offer {offer.offer_id!r:.100}")
        kept_for = project_id if is_kept else ""
        before = [one for one in await machines_of_node(connection, request.label) if one.ended_ms is None]
        if before:
            return _machine(before[0], None, now_ms)
        pool, host = await _pool_and_host(connection, offer, kept_for, now_ms=now_ms)
        _check_price(pool, offer, request.max_price_per_hour)
        indices = _free_indices(host, offer, kept_for)
        machine_id = self._ids.new("mach")
        project = {} if node is None else {PROJECT: node.project_id}
        order = json.dumps({**dict(request.bootstrap), **project}, sort_keys=True)
        machine = HostMachine(
            machine_id=machine_id,
            host_id=host_id,
            node_id=request.label,
            gpu_indices=indices,
            price_micros=pool.price.micros * offer.gpu_count,
            created_ms=now_ms,
            sealed_order=self._sealer.seal(SEALED_FOR, machine_id, order),
            order_key_id=self._sealer.key_id,
        )
        await add_machine(connection, machine)
        await raise_version(connection, host_id)
        await notify.host(connection, host_id)
        return _machine(machine, pool, now_ms)

    async def machines(self, label: str | None = None) -> Sequence[Machine]:
        """See `OwnHosts.machines`."""
        now_ms = self._clock.now_ms()
        async with self._transaction() as connection:
            if label is None:
                found = await listed_machines(connection, since_ms=now_ms - _LISTED_FOR_MS)
            else:
                found = await machines_of_node(connection, label)
            pools = await _pool_of_hosts(connection, now_ms=now_ms)
        return [_machine(one, pools.get(one.host_id), now_ms) for one in found]

    async def machine(self, ref: str) -> Machine | None:
        """See `OwnHosts.machine`."""
        async with self._transaction() as connection:
            found = await find_machine(connection, ref)
        return None if found is None else _machine(found, None, self._clock.now_ms())

    async def end(self, ref: str) -> None:
        """See `OwnHosts.end`."""
        now_ms = self._clock.now_ms()
        async with self._transaction() as connection:
            found = await find_machine(connection, ref)
            if found is None:
                return
            await lock_host(connection, found.host_id)  # as whoever reports it does first, too
            if not await set_ending(connection, ref, now_ms=now_ms):
                return
            await raise_version(connection, found.host_id)
            await notify.host(connection, found.host_id)

    async def log(self, ref: str) -> str:
        """See `OwnHosts.log`."""
        async with self._transaction() as connection:
            return await log_tail_of(connection, ref)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        try:
            async with self._database.transaction() as connection:
                yield connection
        except Unavailable as error:
            raise Transient(f"the hosts of pools cannot be looked at: {error.message}") from error


async def _pool_and_host(connection: Connection, offer: Offer, kept_for: str, *, now_ms: int) -> tuple[Pool, OwnHost]:
    """Both, while a machine may be had there. Raises OfferGone, and NoCapacity at the pool's limit: what is lent or
    kept is used already."""
    host_id = offer.host.partition("/")[0]
    hosts = await seen_hosts(connection, now_ms=now_ms)
    host = next((one for one in hosts if one.host_id == host_id), None)
    pools = {row.pool.name: row.pool for row in await read_pools(connection)}
    pool = None if host is None else pools.get(host.pool)
    if host is None or pool is None or not host.is_open or not is_open(pool, now_ms):
        raise OfferGone(f"{host_id} takes nothing new now")
    usable = _usable(host, offer, kept_for)[: offer.gpu_count]
    used = used_gpus(hosts).get(pool.name, 0) - sum(is_held(host, gpu.index) for gpu in usable)
    if pool.most_gpus is not None and used > pool.most_gpus:
        raise NoCapacity(f"pool {pool.name} is at its limit of {pool.most_gpus} GPUs")
    return pool, host


def _usable(host: OwnHost, offer: Offer, kept_for: str) -> tuple[HostGpu, ...]:
    kind = offer.host.partition("/")[2]
    return free_of(replace(host, awaited={}), kind, for_spot=offer.spot_only, kept_for=kept_for)


def _free_indices(host: OwnHost, offer: Offer, kept_for: str) -> tuple[int, ...]:
    """Those that the new machine gets. What is promised to it and to others does not count: who asks first gets it."""
    count, kind = offer.gpu_count, offer.host.partition("/")[2]
    free = _usable(host, offer, kept_for)
    if len(free) < count:
        raise NoCapacity(f"{len(free)} of {count} {kind} are free on {host.host_id}")
    return tuple(gpu.index for gpu in free[:count])


def _check_price(pool: Pool, offer: Offer, most: Money) -> None:
    price = Money(pool.price.micros * offer.gpu_count)
    if price > most:
        raise PriceMoved(f"a machine of {offer.gpu_count} GPUs of pool {pool.name} costs {price}/h now, not {most}/h")


async def _pool_of_hosts(connection: Connection, *, now_ms: int) -> dict[str, Pool]:
    pools = {row.pool.name: row.pool for row in await read_pools(connection)}
    hosts = await seen_hosts(connection, now_ms=now_ms)
    return {host.host_id: pools[host.pool] for host in hosts if host.pool in pools}


def _machine(found: HostMachine, pool: Pool | None, now_ms: int) -> Machine:
    """As providers tell of machines. One that is asked to end counts as ended: its host ends it at its next word, and
    its GPUs are nobody's until then. One that began after that, as its host had not heard yet, costs nothing."""
    over_ms = found.ended_ms if found.ending_ms is None else found.ending_ms
    began_ms = found.started_ms
    if began_ms is not None and over_ms is not None and began_ms > over_ms:
        began_ms = None
    status = MachineStatus.RUNNING if found.started_ms is not None else MachineStatus.BOOTING
    ends = [found.host_ends_ms, None if pool is None else ends_ms(pool, now_ms)]
    return Machine(
        provider=JOINED,
        ref=found.machine_id,
        label=found.node_id,
        tier=Tier.OWN,
        status=MachineStatus.ENDED if over_ms is not None else status,
        price_per_hour=Money(found.price_micros),
        created_ms=found.created_ms,
        billed_from_ms=began_ms,
        billed_to_ms=over_ms if began_ms is not None else None,
        detail=found.detail,
        ends_ms=min((one for one in ends if one is not None), default=None),
    )
