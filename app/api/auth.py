"""Who may call: dependencies that give a route its caller, or end the request with 401 or 403."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.types import Scope

from app.services.access.authenticate import Authenticator, Caller
from app.services.kit.rate_limit import RateLimiter

CALLER = "allpass.caller"
_BEARER = b"bearer "
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


class Door:
    """Lets requests in: the key is checked, its rate counted, its scope compared, in this order."""

    def __init__(self, authenticator: Authenticator, limiter: RateLimiter) -> None:
        self._authenticator = authenticator
        self._limiter = limiter

    async def admit(self, scope: Scope, needed: str) -> Caller:
        """The caller, left in the ASGI scope as well. Raises Unauthenticated, TooManyRequests or Forbidden."""
        caller = await self._authenticator.authenticate(bearer(scope["headers"]))
        self._limiter.take(caller.key_id)
        scope[CALLER] = caller
        caller.require(needed)
        return caller


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
