"""Define, change, drain and remove pools, on behalf of owners of the installation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from allpass.wire.pools import PoolChange, PoolRequest
from app.core.model.money import Money
from app.core.model.pool import JOINED, Pool
from app.core.pools import read_hours
from app.db import notify
from app.db.access.projects import project_names
from app.db.connection import Connection
from app.db.nodes.lifetimes import set_ends_of_pool
from app.db.pools.hosts import hosts_of
from app.db.pools.pools import PoolRow, add_pool, delete_pool, find_pool, read_pools, set_pool
from app.errors import Conflict, InvalidInput, NotFound
from app.services.jobs.compose_job import micros
from app.services.pools.join_host import tell_offers

MOST_POOLS = 200  # each is looked at in every decision


async def define_pool(
    connection: Connection, request: PoolRequest, launchers: Collection[str], *, now_ms: int
) -> PoolRow:
    """A new one. Raises InvalidInput naming the field, and Conflict for a name that is taken."""
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
    await notify.control(connection)
    return row


async def change_pool(connection: Connection, name: str, request: PoolChange) -> PoolRow:
    """What is named in the request; the rest stays. Raises NotFound, and InvalidInput naming the field."""
    row = await _changed(connection, await _locked(connection, name), request)
    await set_pool(connection, row)
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


async def remove_pool(connection: Connection, name: str) -> PoolRow:
    """Raises NotFound, and Conflict while hosts are in it or something runs there."""
    row = await _locked(connection, name)
    hosts = await hosts_of(connection, [name])
    if hosts:
        raise Conflict(
            f"{len(hosts)} hosts are in pool {name}: have them leave first (allpass node leave there, or allpass pool "
            f"drain {name} and then allpass pool forget for those that do not answer any more)"
        )
    await delete_pool(connection, name)
    await notify.control(connection)
    return row


async def _changed(connection: Connection, row: PoolRow, request: PoolChange) -> PoolRow:
    given = request.model_fields_set
    pool = row.pool
    if "price_usd" in given and request.price_usd is not None:
        pool = replace(pool, price=Money(micros(request.price_usd, "price_usd")))
    if "preference" in given and request.preference is not None:
        pool = replace(pool, preference=request.preference)
    if "projects" in given:
        pool = replace(pool, projects=await _projects(connection, request.projects or []))
    if "most_gpus" in given:
        pool = replace(pool, most_gpus=request.most_gpus)
    hours = request.hours or "" if "hours" in given else row.hours
    pool = replace(pool, hours=read_hours(hours))
    labels = dict(request.labels or {}) if "labels" in given else row.labels
    return replace(row, pool=pool, hours=hours, labels=labels)


async def _projects(connection: Connection, names: Collection[str]) -> tuple[str, ...]:
    """Ids, of ids or names."""
    known = await project_names(connection)
    found = {project_id for project_id, name in known for wanted in names if wanted in (project_id, name)}
    missing = sorted(wanted for wanted in names if not any(wanted in one for one in known))
    if missing:
        raise InvalidInput(f"projects: there is no project {missing[0]!r:.80} (allpass project list)", param="projects")
    return tuple(sorted(found))


async def _locked(connection: Connection, name: str) -> PoolRow:
    row = await find_pool(connection, name, lock=True)
    if row is None:
        raise NotFound(f"there is no pool {name!r:.80} (allpass pool list shows those that there are)")
    return row


def launchers_of(names: Collection[str]) -> tuple[str, ...]:
    """Of configured providers, those that start machines of one's own; hosts that join need none of them."""
    return tuple(sorted({JOINED, *names}))
