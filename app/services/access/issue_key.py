"""Issue and revoke API keys, on behalf of a key that may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.db.access.keys import KeyFacts, hold_keys, key_facts, usable_keys_with
from app.db.access.keys import revoke_key as write_revocation
from app.db.connection import Connection
from app.errors import Conflict, Forbidden, InvalidInput, InvariantBroken, NotFound
from app.ports.clock import Clock, IdSource
from app.services.access.authenticate import Caller
from app.services.access.create_key import OWNER, SCOPES, create_key

CREATED = 201
ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """`key` is the key itself: nothing else ever tells it."""

    facts: KeyFacts
    key: str


async def issue_key(
    connection: Connection,
    caller: Caller,
    name: str,
    scopes: Sequence[str],
    *,
    expires_ms: int | None,
    clock: Clock,
    ids: IdSource,
    project_id: str | None = None,
) -> IssuedKey:
    """A new key for the caller's project, or for the one that is named: the caller may then act for it.

    Raises InvalidInput, and Forbidden for a scope that the caller lacks, or that no key of another project may have:
    who owns the installation is known by the keys of one project, and can be looked through there.
    """
    target_id = project_id or caller.project_id
    now_ms = clock.now_ms()
    if expires_ms is not None and expires_ms <= now_ms:
        raise InvalidInput("expires_at: is not in the future", param="expires_at")
    _check_grant(caller, scopes)
    if OWNER in scopes and target_id != caller.project_id:
        raise Forbidden("scopes: owner is for keys of the project that owners have theirs in; leave it out here")
    key_id = ids.new("key")
    key = await create_key(
        connection, target_id, name, scopes, clock=clock, ids=ids, expires_ms=expires_ms, key_id=key_id
    )
    facts = await key_facts(connection, target_id, key_id)
    if facts is None:
        raise InvariantBroken(f"key {key_id} is gone in the transaction that made it")
    return IssuedKey(facts, key)


async def revoke_key(connection: Connection, caller: Caller, key_id: str, *, now_ms: int) -> KeyFacts:
    """The key opens nothing any more; revoking it again changes nothing.

    Raises NotFound; Forbidden for a key of an owner, unless an owner asks; and Conflict for the only key that can still
    manage the project's keys, or the installation.
    """
    project_id = caller.project_id
    await hold_keys(connection, project_id)
    facts = await key_facts(connection, project_id, key_id)
    if facts is None:
        raise NotFound(f"there is no key {key_id!r} in this project")
    if OWNER in facts.scopes:
        caller.require(OWNER)
    for scope, what in (ADMIN, "keys"), (OWNER, "projects and limits"):
        if await usable_keys_with(connection, project_id, scope, now_ms=now_ms) == {key_id}:
            raise Conflict(
                f"{key_id} is the project's last key with scope {scope}: without it nobody could manage {what}; "
                f"create another one with scope {scope} first, and revoke this one with that"
            )
    await write_revocation(connection, key_id, now_ms=now_ms)
    revoked = await key_facts(connection, project_id, key_id)
    if revoked is None:
        raise InvariantBroken(f"key {key_id} is gone in the transaction that revoked it")
    return revoked


def _check_grant(caller: Caller, scopes: Sequence[str]) -> None:
    own = caller.scopes | (frozenset(SCOPES) - {OWNER}) if ADMIN in caller.scopes else caller.scopes
    lacking = sorted(set(scopes) & set(SCOPES) - own)
    if lacking:
        raise Forbidden(
            f"scopes: a key cannot grant what it lacks: {', '.join(lacking)}; it has {', '.join(sorted(own))}"
        )
