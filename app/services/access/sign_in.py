"""Begin and end a browser's session. Its token is told once, in a cookie: only its hash is stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from app.db.access.sessions import NewSession, SessionRow, add_session, end_session, find_session
from app.db.connection import Connection
from app.errors import Forbidden, InvariantBroken
from app.ports.clock import Clock, IdSource
from app.services.access.authenticate import Caller, SessionTimes, hash_token
from app.settings import Settings

MOST_SESSIONS = 1000  # of one key: a team may share it, and a script that signs in for ever fills no table
_CSRF = b"allpass session, against requests from elsewhere"


@dataclass(frozen=True, slots=True)
class SignedIn:
    """`token` is what the cookie holds: nothing else ever tells it."""

    row: SessionRow
    token: str


def session_times(settings: Settings) -> SessionTimes:
    return SessionTimes(round(settings.session_idle_s * 1000), round(settings.session_longest_s * 1000))


async def sign_in(
    connection: Connection, caller: Caller, times: SessionTimes, *, clock: Clock, ids: IdSource
) -> SignedIn:
    """A session with the project and the scopes of the key that was let in."""
    now_ms, token = clock.now_ms(), secrets.token_urlsafe(32)
    new = NewSession(
        session_id=ids.new("sess"),
        token_sha256=hash_token(token),
        project_id=caller.project_id,
        key_id=caller.key_id,
        scopes=caller.scopes,
        expires_ms=now_ms + min(times.idle_ms, times.longest_ms),
    )
    await add_session(connection, new, now_ms=now_ms, most=MOST_SESSIONS)
    row = await find_session(connection, new.token_sha256)
    if row is None:
        raise InvariantBroken(f"session {new.session_id} is gone in the transaction that made it")
    return SignedIn(row, token)


async def sign_out(connection: Connection, token: str) -> SessionRow | None:
    """The session opens nothing any more; None when it did not before."""
    return await end_session(connection, hash_token(token))


def csrf_token(token: str) -> str:
    """What a page of ours reads and sends along, and a page of somebody else's cannot. The cookie cannot be computed
    from it."""
    return hmac.new(token.encode(), _CSRF, hashlib.sha256).hexdigest()


def check_csrf(token: str, sent: bytes | None) -> None:
    """Raises Forbidden unless the request carries what only a page of ours knows."""
    if sent is None or not hmac.compare_digest(csrf_token(token).encode(), sent):
        what = "is missing" if sent is None else "is not that of this session"
        raise Forbidden(
            f"X-CSRF-Token: {what}; a request that changes something with a session's cookie has to send the "
            "csrf_token of GET /v1/session",
            param="X-CSRF-Token",
        )
