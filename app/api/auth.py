"""Who may call: dependencies that give a route its caller, or end the request with 401 or 403."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from app.services.authenticate import Authenticator, Caller

_BEARER = b"bearer "
_documented = HTTPBearer(auto_error=False, description="An API key: `ak_<prefix>_<secret>`")


def bearer(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The token of an Authorization header, if there is one."""
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == _BEARER:
            return value[7:].strip().decode("latin-1")
    return None


def _with_scope(scope: str) -> Callable[..., Awaitable[Caller]]:
    async def caller(request: Request, _: Annotated[object, Depends(_documented)]) -> Caller:
        authenticator: Authenticator = request.app.state.authenticator
        found = await authenticator.authenticate(bearer(request.scope["headers"]))
        found.require(scope)
        return found

    return caller


Reader = Annotated[Caller, Depends(_with_scope("read"))]
Submitter = Annotated[Caller, Depends(_with_scope("submit"))]
