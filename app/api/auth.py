"""Who may call: dependencies that give a route its caller, or end the request with 401 or 403.

A key in the Authorization header, or the cookie of a browser that is signed in (`app.api.session`). A browser sends
its cookie along whoever makes it ask, so a request that may change something has to show that it comes from our pages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.types import Scope

from app.services.access.authenticate import Authenticator, Caller, session_over
from app.services.access.sign_in import check_csrf
from app.services.kit.rate_limit import RateLimiter

CALLER = "allpass.caller"
SESSION_COOKIE = "allpass_session"
_BEARER = b"bearer "
_COOKIE = SESSION_COOKIE.encode() + b"="
_READING = frozenset({"GET", "HEAD"})
_API_KEY = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    description="An API key, `ak_<prefix>_<secret>`: from `POST /v1/keys`, or from the file that the service wrote its "
    "first one to. It has scopes: `read`, `submit`, or `admin`, which includes these; "
    "`owner` is for projects, limits and budgets of the installation.",
)


def bearer(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The token of an Authorization header, if there is one."""
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == _BEARER:
            return value[7:].strip().decode("latin-1")
    return None


def session_token(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The token of the session's cookie, if there is one. Of several the first: browsers send that of the longest path
    first."""
    for name, value in headers:
        if name == b"cookie":
            for part in value.split(b";"):
                if part.strip().startswith(_COOKIE):
                    return part.strip()[len(_COOKIE) :].decode("latin-1")
    return None


class Door:
    """Lets requests in: the key or the session is checked, its rate counted, its scope compared, in this order."""

    def __init__(self, authenticator: Authenticator, limiter: RateLimiter) -> None:
        self._authenticator = authenticator
        self._limiter = limiter

    async def admit(self, scope: Scope, needed: str) -> Caller:
        """The caller, left in the ASGI scope as well. Raises Unauthenticated, TooManyRequests or Forbidden."""
        headers = scope["headers"]
        key = bearer(headers)
        if key is None and session_token(headers) is not None:
            caller, _ = await self.admit_session(scope)
        else:
            caller = await self._authenticator.authenticate(key)
            self.count(scope, caller)
        caller.require(needed)
        return caller

    async def admit_session(self, scope: Scope) -> tuple[Caller, str]:
        """The caller of a session, and the session's token; a key in its place counts for nothing. Raises
        Unauthenticated, TooManyRequests, and Forbidden for what may come from another page than ours."""
        token = session_token(scope["headers"])
        if token is None:
            raise session_over()
        caller = await self._authenticator.authenticate_session(token)
        self.count(scope, caller)
        if scope["method"] not in _READING:
            check_csrf(token, csrf_sent(scope))
        return caller, token

    async def admit_key(self, scope: Scope, key: str) -> Caller:
        """The caller of a key that was sent to sign in with. Raises Unauthenticated, TooManyRequests or Forbidden."""
        caller = await self._authenticator.authenticate(key)
        self.count(scope, caller)
        return caller

    def count(self, scope: Scope, caller: Caller) -> None:
        """The caller is left in the scope once its rate allows it: what was refused for its rate is not noted."""
        self._limiter.take(caller.key_id)
        scope[CALLER] = caller


def csrf_sent(scope: Scope) -> bytes | None:
    """The header that only our pages can send."""
    return next((value for name, value in scope["headers"] if name == b"x-csrf-token"), None)


def _with_scope(scope: str) -> Callable[..., Awaitable[Caller]]:
    documented = Security(_API_KEY, scopes=[scope])

    async def caller(request: Request, _: object = documented) -> Caller:
        door: Door = request.app.state.door
        return await door.admit(request.scope, scope)

    return caller


Reader = Annotated[Caller, Depends(_with_scope("read"))]
Submitter = Annotated[Caller, Depends(_with_scope("submit"))]
Owner = Annotated[Caller, Depends(_with_scope("owner"))]
Admin = Annotated[Caller, Depends(_with_scope("admin"))]
