"""A host's call: it says what is, and waits for what should be."""

from __future__ import annotations

import asyncio
import contextlib

from allpass.wire.hosts import HostSyncReply, HostSyncRequest
from app.db.engine import Database
from app.db.listen import Listener
from app.db.notify import HOST
from app.db.pools.hosts import find_host
from app.ports.clock import Clock, IdSource
from app.services.kit.seal import Sealer
from app.services.pools.sync_host import orders_of_host, report_host
from app.settings import Settings

_LOOK_EVERY_S = 15.0  # where a notification was lost


async def sync_host(
    database: Database,
    listener: Listener,
    settings: Settings,
    clock: Clock,
    ids: IdSource,
    authorization: str | None,
    request: HostSyncRequest,
) -> HostSyncReply:
    """Take in the report; answer once there are other orders than those of `request.version`, or `wait_s` are over.
    Raises Unauthenticated for a host that is in no pool any more."""
    loop = asyncio.get_running_loop()
    until = loop.time() + request.wait_s
    budget = settings.fault_budget
    host_id = await report_host(database, ids, authorization, request, fault_budget=budget, now_ms=clock.now_ms())
    with listener.watch(HOST, host_id) as woken:
        while True:
            woken.clear()
            async with database.statement() as connection:
                host = await find_host(connection, host_id)
            left_s = until - loop.time()
            if host is None or host.version != request.version or left_s <= 0:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _LOOK_EVERY_S)):
                    await woken.wait()
    async with database.transaction() as connection:
        return await orders_of_host(connection, Sealer.of(settings), host_id, now_ms=clock.now_ms())
