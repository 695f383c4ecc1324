"""What is found out of a machine once it has joined and before it works: that a GPU does not compute, or that its host
downloads far slower than was promised. Such a machine is given back; one that works already never is for that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.downloads import download_mbps, is_elsewhere, is_far_below
from app.core.gpu_checks import Checked, gpu_check_of, is_the_images
from app.core.hosts import HostFailure, barred_hosts
from app.core.model.node import GONE_NODE_STATES, NodeState
from app.db.connection import Connection
from app.db.engine import Database
from app.db.nodes.agents import NodeIdentity
from app.db.nodes.host_failures import add_host_failure, failures_by_provider
from app.db.nodes.lifecycle import NodeRow, has_node_event, lock_node
from app.db.nodes.machine_facts import recent_checks, recent_downloads
from app.db.offers.listed import recent_offers
from app.db.runs.live_runs import has_begun
from app.db.text import storable_text
from app.db.transitions import Event, add_node_event
from app.ports.clock import IdSource
from app.services.nodes.give_machine_back import give_machine_back

DOUBTED = "node_check_doubted"
SLOW = "node_slow"
MEASURED = "node_download_measured"
_OVER = GONE_NODE_STATES | {NodeState.TERMINATING}
_DAY_MS = 86_400_000


async def give_back_if_it_does_not_compute(
    database: Database, ids: IdSource, node: NodeIdentity, host: Mapping[str, Any], *, now_ms: int
) -> bool:
    """Whether a GPU's first calculation failed, which its agent tells at every call. Then its machine is given back:
    no code has run there, so nobody's code is to blame. Where it seems to be the image, that is noted instead."""
    check = gpu_check_of(host)
    if check is None or check.result is not Checked.FAILED:
        return False
    async with database.transaction() as connection:
        row = await lock_node(connection, node.node_id)
        if row is None or row.state in _OVER or await has_node_event(connection, node.node_id, DOUBTED):
            return False
        why = storable_text(check.why)
        others = await recent_checks(connection, row.image, but_node=row.node_id, since_ms=now_ms - _DAY_MS)
        if is_the_images(others):
            message = f"{why}: so it was on every machine lately with image {row.image}, which is taken to be the cause"
            await add_node_event(connection, row.node_id, Event(DOUBTED, message), now_ms=now_ms)
            return False
        await give_machine_back(connection, ids, row, f"has a GPU that does not compute: {why}", now_ms=now_ms)
        return True


async def let_go_if_slow(
    database: Database,
    ids: IdSource,
    node: NodeIdentity,
    host: Mapping[str, Any],
    *,
    offers_gone_after_ms: int,
    now_ms: int,
) -> bool:
    """Whether the machine's link is far below its promise, and it is given back for that: only while none of its jobs
    has begun, and where there is another host to take. Its host is remembered in any case."""
    mbps = download_mbps(host)
    if mbps is None or not _tells_now(host):
        return False
    async with database.transaction() as connection:
        row = await lock_node(connection, node.node_id)
        if row is None or row.state in _OVER or await has_node_event(connection, node.node_id, SLOW):
            return False
        others = await recent_downloads(connection, row.provider, but_host=row.offer.host, since_ms=now_ms - _DAY_MS)
        if not row.offer.host or not is_far_below(mbps, row.offer.download_mbps, others):
            return False
        why = f"downloads {mbps:.1f} Mbit/s, {row.offer.download_mbps} Mbit/s were promised, and others are faster"
        leaves = await _may_leave(connection, row, offers_gone_after_ms=offers_gone_after_ms, now_ms=now_ms)
        stays = "" if leaves else "; it stays, as it works already or there is no other host"
        await add_node_event(connection, row.node_id, Event(SLOW, f"it {why}{stays}"), now_ms=now_ms)
        if leaves:
            await give_machine_back(connection, ids, row, why, now_ms=now_ms)
        else:
            failure = HostFailure(row.offer.host, row.provider_ref or row.node_id, now_ms)
            await add_host_failure(connection, row.provider, failure)
        return leaves


def _tells_now(host: Mapping[str, Any]) -> bool:
    """An agent tells its notices until they are heard, and its facts for ever: it is judged once."""
    told = host.get("notices")
    return isinstance(told, list) and any(isinstance(each, dict) and each.get("kind") == MEASURED for each in told)


async def _may_leave(connection: Connection, row: NodeRow, *, offers_gone_after_ms: int, now_ms: int) -> bool:
    if await has_begun(connection, row.node_id):
        return False
    failures = (await failures_by_provider(connection, now_ms=now_ms)).get(row.provider, [])
    barred = [host.host for host in barred_hosts(failures, now_ms)]
    max_age_ms, project_id = offers_gone_after_ms, row.project_id
    offers = await recent_offers(connection, now_ms=now_ms, max_age_ms=max_age_ms, project_id=project_id)
    return is_elsewhere(row.offer, offers, barred)
