"""Signing a browser in and out.

The key is sent once. What the browser keeps is a cookie that no script can read, that it sends to this service alone,
and only with requests that begin on its own pages. No path is named in it, so that it is that of `/v1` below whatever
prefix a proxy serves the service.
"""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response, Security
from fastapi.security import APIKeyCookie

from allpass.wire.access import Session, SessionRequest
from app.api.audit import audited
from app.api.auth import CALLER, SESSION_COOKIE, Door, csrf_sent, session_token
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.views import instant
from app.db.access.sessions import SessionRow, extend_session, find_session
from app.errors import Forbidden, Unauthenticated
from app.ports.clock import Clock
from app.services.access.authenticate import Caller, hash_token, session_over
from app.services.access.sign_in import check_csrf, csrf_token, session_times, sign_in, sign_out
from app.services.kit.rate_limit import RateLimiter
from app.settings import Settings

router = APIRouter(prefix="/v1", tags=["session"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
log = logging.getLogger(__name__)

WRONG_KEYS_PER_S = 0.2
WRONG_KEYS_BURST = 20
_PUBLIC_CHARS = 11  # of a key: its prefix
_OURS = frozenset({b"same-origin", b"none"})
_COOKIE = APIKeyCookie(
    name=SESSION_COOKIE,
    auto_error=False,
    scheme_name="Session",
    description="The cookie of `POST /v1/session`, in place of an API key. A request that is neither GET nor HEAD "
    "needs the session's `csrf_token` in the header `X-CSRF-Token`.",
)
_SIGNED_IN = Security(_COOKIE)


def attempts(settings: Settings, clock: Clock) -> RateLimiter:
    """Counts wrong keys by where they come from *and* by the public beginning of the key that they guess at. So nobody
    locks others out, not even of those who come from the same address (of a proxy, say), and a guesser of random keys
    costs what any request with a wrong key costs."""
    per_s = WRONG_KEYS_PER_S if settings.rate_limit_per_s else 0.0
    return RateLimiter(per_s, WRONG_KEYS_BURST, clock, what="tries to sign in", whose="with keys that begin like this")


@router.post(
    "/session",
    operation_id="sign_in",
    summary="Sign a browser in",
    responses=documented(401, 403, 409, 413, 422, 503),
)
async def begin(body: SessionRequest, request: Request, response: Response, context: ContextOf) -> Session:
    """With an API key: the answer sets a cookie that stands for it, with the key's scopes, until the session ends: by
    `DELETE`, when it was not used for 12 hours (a setting), after a week, or with the key. A session that this browser
    had is ended. Takes no `Idempotency-Key`: the cookie is kept nowhere else."""
    _check_origin(request)
    caller = await _let_in(request, body.api_key.strip())
    async with audited(context, request) as write:
        before = session_token(request.scope["headers"])
        ended = None if before is None else await sign_out(write.connection, before)
        signed_in = await sign_in(
            write.connection, caller, session_times(context.settings), clock=context.clock, ids=context.ids
        )
        write.object_id = signed_in.row.session_id
    if ended is not None:
        request.app.state.authenticator.forget_session(ended.session_id)
    secure = "; Secure" if context.settings.public_url.startswith("https:") else ""
    response.headers["Set-Cookie"] = f"{SESSION_COOKIE}={signed_in.token}; HttpOnly; SameSite=Strict{secure}"
    response.headers["Cache-Control"] = "no-store"
    return _view(signed_in.row, signed_in.token)


@router.get(
    "/session", operation_id="get_session", summary="Who is signed in", responses=documented(401, 403, 422, 503)
)
async def show(request: Request, response: Response, context: ContextOf, _: object = _SIGNED_IN) -> Session:
    """By the cookie alone: a page that was loaded anew learns here who it acts for, and its `csrf_token`."""
    door: Door = request.app.state.door
    caller, token = await door.admit_session(request.scope)
    times, now_ms = session_times(context.settings), context.clock.now_ms()
    async with context.database.transaction() as connection:
        await extend_session(
            connection,
            caller.session_id or "",
            now_ms=now_ms,
            idle_ms=times.idle_ms,
            longest_ms=times.longest_ms,
            every_ms=0,
        )
        row = await find_session(connection, hash_token(token))
    if row is None:
        raise session_over()
    response.headers["Cache-Control"] = "no-store"
    return _view(row, token)


@router.delete(
    "/session",
    operation_id="sign_out",
    summary="Sign the browser out",
    status_code=204,
    responses=documented(401, 403, 413, 422, 503),
)
async def end(request: Request, context: ContextOf, _: object = _SIGNED_IN) -> Response:
    """Here at once, in other processes of the service within 5 seconds: the cookie opens nothing any more, whoever has
    a copy of it."""
    token = session_token(request.scope["headers"])
    if token is None:
        raise session_over()
    check_csrf(token, csrf_sent(request.scope))
    async with audited(context, request, status=204) as write:
        ended = await sign_out(write.connection, token)
        if ended is None:
            raise session_over()
        request.scope[CALLER] = Caller(ended.key_id, ended.project_id, ended.scopes, ended.session_id)
        write.object_id = ended.session_id
    request.app.state.authenticator.forget_session(ended.session_id)
    gone = Response(status_code=204)
    gone.headers["Set-Cookie"] = f"{SESSION_COOKIE}=; HttpOnly; SameSite=Strict; Max-Age=0"
    return gone


async def _let_in(request: Request, key: str) -> Caller:
    host = request.client.host if request.client else "nowhere"
    limiter: RateLimiter = request.app.state.sign_ins
    door: Door = request.app.state.door
    bucket = f"{host} {key[:_PUBLIC_CHARS]}"
    limiter.take(bucket)
    try:
        caller = await door.admit_key(request.scope, key)
    except Unauthenticated as error:
        why = error.message.partition(":")[0]
        log.info("a sign-in from %s was refused: %s", host, why)
        raise Unauthenticated(f"api_key: {why}; paste one of this service, as it was shown when it was made") from None
    limiter.forget(bucket)
    return caller


def _check_origin(request: Request) -> None:
    """Another site must not sign a browser in: what is then done there would be done for somebody else."""
    for name, value in request.scope["headers"]:
        if name == b"sec-fetch-site" and value not in _OURS:
            raise Forbidden("a sign-in has to begin on this service's own page")


def _view(row: SessionRow, token: str) -> Session:
    return Session(
        project_id=row.project_id,
        project_name=row.project_name,
        key_id=row.key_id,
        key_name=row.key_name,
        scopes=sorted(row.scopes),
        csrf_token=csrf_token(token),
        expires_at=instant(row.expires_ms),
    )
