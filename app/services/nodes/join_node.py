"""A machine's first call: it exchanges the join token it was started with for the token of its node."""

from __future__ import annotations

from allpass.wire.agent import JoinReply, JoinRequest
from app.db.engine import Database
from app.db.nodes.agents import set_node_token
from app.db.nodes.join_tokens import Joining, count_refusal, lock_joining, set_joined
from app.db.transitions import Event, add_node_event
from app.errors import Conflict, Unauthenticated, UserError
from app.services.kit.node_tokens import TokenMint, token_sha256
from app.services.nodes.authenticate_node import shown_sha256

REFUSED = "node_join_refused"
_REFUSALS_TOLD = 5  # for each join token: whoever knows it must not be able to fill the log


async def join_node(
    database: Database, mint: TokenMint, authorization: str | None, request: JoinRequest, *, now_ms: int
) -> JoinReply:
    """Let the first machine in that shows a join token in time, and that machine again whenever it asks.

    A machine is known by its nonce: the same one gets the same answer, also after the token's time, so that a lost
    reply or a restart costs nothing. Raises Unauthenticated for a token that is unknown, was not used in time, or whose
    node is on its way out; Conflict when another machine is the node. What was refused for a reason that its owner may
    want to know is in the node's events.
    """
    shown = shown_sha256(authorization, "the machine's join token")
    nonce_sha256 = token_sha256(request.nonce)
    async with database.transaction() as connection:
        joining = await lock_joining(connection, shown)
        if joining is None:
            raise Unauthenticated("this join token is of no node that may run here; end this agent")
        refusal = _refusal(joining, nonce_sha256, now_ms=now_ms)
        if refusal is None:
            if joining.shown.nonce_sha256 is None:
                await set_joined(connection, joining.node_id, joining.shown.attempt, nonce_sha256, now_ms=now_ms)
            token = mint.token(joining.node_id)
            if joining.node_token_sha256 != token_sha256(token):  # the installation's secret was changed meanwhile
                await set_node_token(connection, joining.node_id, token_sha256(token))
            return JoinReply(node_id=joining.node_id, node_token=token)
        await count_refusal(connection, joining.node_id, joining.shown.attempt)
        if joining.shown.refusals < _REFUSALS_TOLD:
            told = Event(REFUSED, f"a machine was refused: {refusal.message}", {"attempt": joining.shown.attempt})
            await add_node_event(connection, joining.node_id, told, now_ms=now_ms)
    raise refusal


def _refusal(joining: Joining, nonce_sha256: bytes, *, now_ms: int) -> UserError | None:
    """Why this machine may not be the node; None: it may."""
    shown = joining.shown
    if shown.nonce_sha256 == nonce_sha256:
        return None
    if any(token.nonce_sha256 is not None for token in joining.tokens):
        return Conflict("another machine has joined as this node; end this agent")
    if shown.superseded:
        return Conflict("a later create call has brought the machine of this node; end this agent")
    if now_ms >= shown.expires_ms:
        return Unauthenticated("this join token was not used in time; end this agent")
    return None
