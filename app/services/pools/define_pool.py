"""Define, change, drain and remove pools, on behalf of owners of the installation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from allpass.wire.pools import HostQuota as AskedHosts
from allpass.wire.pools import PoolChange, PoolRequest
from app.core.model.money import Money
from app.core.model.pool import JOINED, HostQuota, Pool
from app.core.pools import read_hours
from app.core.spot_share import FULL
from app.db import notify
from app.db.access.projects import project_names
from app.db.connection import Connection
from app.db.nodes.lifetimes import set_ends_of_pool
from app.db.pools.hosts import hosts_of
from app.db.pools.pools import PoolRow, add_pool, delete_pool, find_pool, read_pools, set_pool
from app.db.pools.spot_shares import set_share
from app.db.reservations.reservations import close_all_of_pool
from app.errors import Conflict, InvalidInput, NotFound
from app.ports.clock import IdSource
from app.services.jobs.compose_job import micros
from app.services.pools.host_quotas import checked, settle_quotas
from app.services.pools.join_host import tell_offers

MOST_POOLS = 200  # each is looked at in every decision


async def define_pool(
    connection: Connection, ids: IdSource, request: PoolRequest, launchers: Collection[str], *, now_ms: int
) -> PoolRow:
    """A new one. Raises InvalidInput naming the field, and Conflict for a name that is taken, and for quotas of hosts:
    it has none yet."""
    if request.launcher not in launchers:
        known = ", ".join(sorted(launchers))
        raise InvalidInput(
            f"launcher: {request.launcher!r} starts no machines of one's own here; those that do: {known}",
            param="launcher",
        )
    if await find_pool(connection, request.name) is not None:
        raise Conflict(f"there is a pool {request.name} (allpass pool list shows it)", param="name")
    if len(await read_pools(connection)) >= MOST_POOLS:
        raise Conflict(f"there are {MOST_POOLS} pools, as many as there can be: remove one")
    pool = Pool(name=request.name, launcher=request.launcher)
    row = await _changed(connection, PoolRow(pool, "", {}, now_ms), request)
    await add_pool(connection, row)
    await settle_quotas(connection, ids, pool, row.pool, now_ms=now_ms)
    await set_share(connection, pool.launcher, pool.name, row.pool.spot_parts, now_ms=now_ms)
    await notify.control(connection)
    return row


async def change_pool(connection: Connection, ids: IdSource, name: str, request: PoolChange, *, now_ms: int) -> PoolRow:
    """What is named in the request; the rest stays. Raises NotFound, InvalidInput naming the field, and Conflict for
    quotas that are raised above what is left beside reservations."""
    before = await _locked(connection, name)
    row = await _changed(connection, before, request)
    await settle_quotas(connection, ids, before.pool, row.pool, now_ms=now_ms)
    await set_pool(connection, row)
    if row.pool.spot_parts != before.pool.spot_parts:
        await set_share(connection, row.pool.launcher, name, row.pool.spot_parts, now_ms=now_ms)
    await notify.control(connection)
    return row


async def drain_pool(connection: Connection, name: str, *, within_ms: int | None, now_ms: int) -> PoolRow:
    """It takes nothing new, and what runs there moves away within that time; its hosts stay in it. None: it takes jobs
    again."""
    row = await _locked(connection, name)
    row = replace(row, pool=replace(row.pool, drains_ms=None if within_ms is None else now_ms + within_ms))
    await set_pool(connection, row)
    await set_ends_of_pool(connection, row.pool.launcher, name, row.pool.drains_ms, drained=True, now_ms=now_ms)
    await tell_offers(connection, now_ms=now_ms)
    return row


async def remove_pool(connection: Connection, name: str, *, now_ms: int) -> PoolRow:
    """Raises NotFound, and Conflict while hosts are in it or something runs there."""
    row = await _locked(connection, name)
    hosts = await hosts_of(connection, [name])
    if hosts:
        raise Conflict(
            f"{len(hosts)} hosts are in pool {name}: have them leave first (allpass node leave there, or allpass pool "
            f"drain {name} and then allpass pool forget for those that do not answer any more)"
        )
    await close_all_of_pool(connection, name, "its pool was removed", now_ms=now_ms)
    await delete_pool(connection, name)
    await notify.control(connection)
    return row


async def _changed(connection: Connection, row: PoolRow, request: PoolChange) -> PoolRow:
    given = request.model_fields_set
    pool = row.pool
    if "price_usd" in given and request.price_usd is not None:
        pool = replace(pool, price=Money(micros(request.price_usd, "price_usd")))
    if "spot_share" in given and request.spot_share is not None:
        pool = replace(pool, spot_parts=_parts(request.spot_share, "spot_share"))
    if "rebate" in given and request.rebate is not None:
        pool = replace(pool, rebate_parts=_parts(request.rebate, "rebate"))
    if "grace_s" in given:
        pool = replace(pool, grace_ms=_grace_ms(pool, request.grace_s))
    if "preference" in given and request.preference is not None:
        pool = replace(pool, preference=request.preference)
    if "projects" in given:
        pool = replace(pool, projects=await _projects(connection, request.projects or []))
    if "most_gpus" in given:
        pool = replace(pool, most_gpus=request.most_gpus)
    if "quotas" in given:
        pool = replace(pool, quotas=await _quotas(connection, request.quotas or {}))
    if "host_quotas" in given:
        pool = replace(pool, host_quotas=checked(pool, await _host_quotas(connection, request.host_quotas or {})))
    hours = request.hours or "" if "hours" in given else row.hours
    pool = replace(pool, hours=read_hours(hours))
    labels = dict(request.labels or {}) if "labels" in given else row.labels
    return replace(row, pool=pool, hours=hours, labels=labels)


def _grace_ms(pool: Pool, grace_s: int | None) -> int | None:
    if grace_s is not None and pool.launcher != JOINED:
        raise InvalidInput(
            f"grace_s: only a pool of hosts that have joined takes one, and the machines of this one are of "
            f"{pool.launcher}; leave it out",
            param="grace_s",
        )
    return None if grace_s is None else 1000 * grace_s


def _parts(share: float, field: str) -> int:
    """In millionths, as prices are in micro-dollars."""
    parts = Decimal(str(share)) * FULL
    if parts != int(parts):
        raise InvalidInput(f"{field}: {share} has more than six decimals; a millionth is the smallest", param=field)
    return int(parts)


async def _projects(connection: Connection, names: Collection[str], field: str = "projects") -> tuple[str, ...]:
    """Ids, of ids or names."""
    known = await project_names(connection)
    found = {project_id for project_id, name in known for wanted in names if wanted in (project_id, name)}
    missing = sorted(wanted for wanted in names if not any(wanted in one for one in known))
    if missing:
        raise InvalidInput(f"{field}: there is no project {missing[0]!r:.80} (allpass project list)", param=field)
    return tuple(sorted(found))


async def _quotas(connection: Connection, gpus: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """By id, of ids or names. A project that is named twice has both together."""
    await _projects(connection, gpus.keys(), "quotas")
    found: dict[str, int] = {}
    for project_id, name in await project_names(connection):
        number = gpus.get(project_id, 0) + (gpus.get(name, 0) if name != project_id else 0)
        if number:
            found[project_id] = number
    return tuple(sorted(found.items()))


async def _host_quotas(connection: Connection, asked: Mapping[str, Sequence[AskedHosts]]) -> list[HostQuota]:
    """By id, of ids or names."""
    await _projects(connection, asked.keys(), "host_quotas")
    return [
        HostQuota(project_id, one.gpu_type, one.gpus, one.hosts)
        for project_id, name in await project_names(connection)
        for key in sorted({project_id, name})
        for one in asked.get(key, ())
    ]


async def _locked(connection: Connection, name: str) -> PoolRow:
    row = await find_pool(connection, name, lock=True)
    if row is None:
        raise NotFound(f"there is no pool {name!r:.80} (allpass pool list shows those that there are)")
    return row


def launchers_of(names: Collection[str]) -> tuple[str, ...]:
    """Of configured providers, those that start machines of one's own; hosts that join need none of them."""
    return tuple(sorted({JOINED, *names}))
