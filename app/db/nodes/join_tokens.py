"""Join tokens: one for each create call of a node, of which one machine makes use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Update, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.nodes.agents import SHUT_OUT
from app.db.tables import node_joins, nodes


@dataclass(frozen=True, slots=True)
class JoinToken:
    """`nonce_sha256` None: no machine has used it yet. `superseded`: a later call's machine is the node's."""

    attempt: int
    token_sha256: bytes
    expires_ms: int
    superseded: bool
    nonce_sha256: bytes | None
    refusals: int


@dataclass(frozen=True, slots=True)
class Joining:
    """A node that may be joined, with the join token that was shown and all of the node's."""

    node_id: str
    node_token_sha256: bytes
    shown: JoinToken
    tokens: Sequence[JoinToken]


async def add_join_token(
    connection: AsyncConnection, node_id: str, attempt: int, token_sha256: bytes, *, expires_ms: int
) -> None:
    """Let the machine of this create call join until then. Repeated, it moves the time."""
    statement = insert(node_joins).values(
        node_id=node_id, attempt=attempt, token_sha256=token_sha256, expires_ms=expires_ms
    )
    changed = {"token_sha256": token_sha256, "expires_ms": expires_ms}
    await connection.execute(statement.on_conflict_do_update(index_elements=["node_id", "attempt"], set_=changed))


async def has_joined(connection: AsyncConnection, node_id: str) -> bool:
    """Whether a machine has joined as this node."""
    used = select(node_joins.c.attempt).where(node_joins.c.node_id == node_id, node_joins.c.nonce_sha256.is_not(None))
    return (await connection.execute(used)).first() is not None


async def supersede_joins(connection: AsyncConnection, node_id: str, *, but: int) -> None:
    """Machines of other calls than `but` come too late, unless one has joined already."""
    await connection.execute(
        update(node_joins)
        .where(node_joins.c.node_id == node_id, node_joins.c.attempt != but, node_joins.c.nonce_sha256.is_(None))
        .values(superseded=True)
    )


async def lock_joining(connection: AsyncConnection, token_sha256: bytes) -> Joining | None:
    """Lock the node that this join token is for, and read what has come of its join tokens. None: the token is
    nobody's, or its node is on its way out."""
    found = await connection.execute(select(node_joins.c.node_id).where(node_joins.c.token_sha256 == token_sha256))
    node_id = found.scalar_one_or_none()
    if node_id is None:
        return None
    welcome = (nodes.c.id == node_id, nodes.c.token_sha256.is_not(None), nodes.c.state.not_in(SHUT_OUT))
    locked = await connection.execute(select(nodes.c.token_sha256).where(*welcome).with_for_update(key_share=True))
    node_token_sha256 = locked.scalar_one_or_none()
    if node_token_sha256 is None:
        return None
    columns = [node_joins.c[name] for name in JoinToken.__dataclass_fields__]
    rows = await connection.execute(
        select(*columns).where(node_joins.c.node_id == node_id).order_by(node_joins.c.attempt)
    )
    tokens = [JoinToken(*row) for row in rows]
    shown = next(token for token in tokens if token.token_sha256 == token_sha256)
    return Joining(node_id, node_token_sha256, shown, tokens)


async def set_joined(
    connection: AsyncConnection, node_id: str, attempt: int, nonce_sha256: bytes, *, now_ms: int
) -> None:
    """From now on the join token is this machine's alone."""
    await connection.execute(_the(node_id, attempt).values(nonce_sha256=nonce_sha256, joined_ms=now_ms))


async def count_refusal(connection: AsyncConnection, node_id: str, attempt: int) -> None:
    """One more was refused who had shown this join token."""
    await connection.execute(_the(node_id, attempt).values(refusals=node_joins.c.refusals + 1))


def _the(node_id: str, attempt: int) -> Update:
    return update(node_joins).where(node_joins.c.node_id == node_id, node_joins.c.attempt == attempt)
