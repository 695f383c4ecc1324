"""A host joins a pool: it exchanges the pool's token for one of its own."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from allpass.wire.hosts import HostFacts, HostJoinReply, HostJoinRequest
from app.core.gpu_names import family_of
from app.core.model.node import Tier
from app.core.model.pool import JOINED
from app.db import notify
from app.db.connection import Connection
from app.db.offers.listed import replace_offers
from app.db.pools.hosts import HostRow, add_host, host_of_nonce, set_heard, set_token
from app.db.pools.offers import own_offers
from app.db.pools.pools import add_token, find_pool, pool_of_token, set_token_used
from app.db.text import storable_json, storable_text
from app.db.unreadable import RowReading
from app.errors import Conflict, NotFound, Unauthenticated
from app.ports.clock import IdSource
from app.services.kit.node_tokens import token_sha256
from app.services.nodes.authenticate_node import shown_sha256
from app.settings import Settings

_PURPOSE = b"allpass host token\x00"
_TOKEN = "apj_"  # noqa: S105 - how a pool's tokens begin
MOST_HOSTS = 10_000


async def make_pool_token(connection: Connection, pool: str, *, joins: int, expires_ms: int, now_ms: int) -> str:
    """A token with which so many hosts may join until then. Raises NotFound, and Conflict for a pool that hosts do not
    join."""
    found = await find_pool(connection, pool)
    if found is None:
        raise NotFound(f"there is no pool {pool!r:.80} (allpass pool list shows those that there are)")
    if found.pool.launcher != JOINED:
        raise Conflict(f"machines of pool {pool} are started by {found.pool.launcher}: no host joins it")
    token = _TOKEN + secrets.token_hex(24)
    await add_token(connection, pool, token_sha256(token), joins=joins, expires_ms=expires_ms, now_ms=now_ms)
    return token


async def join_host(
    connection: Connection,
    settings: Settings,
    ids: IdSource,
    authorization: str | None,
    request: HostJoinRequest,
    *,
    now_ms: int,
) -> HostJoinReply:
    """Let a host in; one that has joined the pool before, as its nonce says, is the same host and uses up nothing.
    Raises Unauthenticated for a token that is unknown, over or used up."""
    shown = shown_sha256(authorization, "the pool's token")
    found = await pool_of_token(connection, shown)
    if found is None:
        raise Unauthenticated("this token opens no pool: make another one with `allpass pool token POOL`")
    pool, joins_left, expires_ms = found
    nonce_sha256 = token_sha256(request.nonce)
    host = await host_of_nonce(connection, pool, nonce_sha256)
    if host is None:
        if now_ms >= expires_ms:
            raise Unauthenticated(
                f"this token of pool {pool} is over: make another one with `allpass pool token {pool}`"
            )
        if joins_left <= 0:
            raise Unauthenticated(
                f"this token of pool {pool} is used up: make another with `allpass pool token {pool} --joins N`"
            )
        host = _new_host(ids, pool, request, now_ms)
        await add_host(connection, host, nonce_sha256=nonce_sha256)
        await set_token_used(connection, shown)
    await set_heard(connection, host.host_id, boot_id=request.boot_id, facts=facts_of(request.facts), now_ms=now_ms)
    token = _host_token(settings, host.host_id)
    await set_token(connection, host.host_id, token_sha256(token))
    await tell_offers(connection, now_ms=now_ms)
    return HostJoinReply(host_id=host.host_id, host_token=token, pool=pool)


def facts_of(facts: HostFacts) -> dict[str, object]:
    """As they are kept: with each GPU's type as jobs ask for it."""
    told = facts.model_dump()
    for gpu in told["gpus"]:
        gpu["type"] = gpu_type_of(gpu["name"])
    kept: dict[str, object] = storable_json(told)
    return kept


def gpu_type_of(name: str) -> str:
    """What jobs call a card that its driver calls so; of one that is not known its name, without what no type has."""
    family = family_of(name)
    if family is not None:
        return family.upper()
    plain = "".join(letter for letter in name if letter.isascii() and letter.isalnum())
    return plain[:40] or "GPU"


async def tell_offers(connection: Connection, *, now_ms: int) -> None:
    """The hosts have changed: what is on offer is listed anew, and whoever waits for it is looked at."""
    listed, own = await own_offers(connection, now_ms=now_ms), (Tier.OWN,)  # hosts of a pool reach each other
    await replace_offers(connection, JOINED, listed, now_ms=now_ms, reading=RowReading(), networked=own)
    await notify.control(connection)


def _new_host(ids: IdSource, pool: str, request: HostJoinRequest, now_ms: int) -> HostRow:
    return HostRow(
        host_id=ids.new("host"),
        pool=pool,
        name=storable_text(request.name),
        boot_id=request.boot_id,
        facts=facts_of(request.facts),
        labels=storable_json(request.labels),
        joined_ms=now_ms,
        heard_ms=now_ms,
        drains_ms=None,
        leaves_ms=None,
        left_ms=None,
        version=1,
    )


def _host_token(settings: Settings, host_id: str) -> str:
    """The same host always gets the same one: a reply that was lost can be repeated."""
    secret = settings.secret_key.get_secret_value().encode()
    return hmac.new(secret, _PURPOSE + host_id.encode(), hashlib.sha256).hexdigest()
