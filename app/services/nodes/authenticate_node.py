"""Who is calling: the node that an agent's token stands for."""

from __future__ import annotations

import hashlib

from app.db.engine import Database
from app.db.nodes.agents import NodeIdentity, node_of_token
from app.errors import Unauthenticated


async def authenticate_node(database: Database, authorization: str | None) -> NodeIdentity:
    """The node behind an `Authorization: Bearer <token>` header.

    Only the token's hash is stored, and it is looked up by index on every call: a forgotten token is refused from
    the next call on. Raises Unauthenticated; whether the token never existed or is over is not told.
    """
    digest = shown_sha256(authorization, "the node's token")
    async with database.statement() as connection:
        node = await node_of_token(connection, digest)
    if node is None:
        raise Unauthenticated("this token is of no node that may run here; end this agent")
    return node


def shown_sha256(authorization: str | None, what: str) -> bytes:
    """The hash of the token in an `Authorization` header. Raises Unauthenticated, asking for `what`."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(f"send {what} as: Authorization: Bearer <token>")
    return hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
