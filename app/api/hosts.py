"""`/v1/agent/hosts`: where hosts of pools call, and where they get their program. See `allpass.wire.hosts`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Response
from fastapi.security import HTTPBearer

from allpass.wire.hosts import HostJoinReply, HostJoinRequest, HostSyncReply, HostSyncRequest
from app.api.agent import TurnsOf
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.errors import NotFound
from app.services.pools.follow_host import sync_host
from app.services.pools.host_program import host_program, join_script
from app.services.pools.join_host import join_host

router = APIRouter(tags=["agent"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
_FOR_EVER = "public, max-age=31536000, immutable"  # another content has another name
_PROGRAM = "application/octet-stream"
_SCRIPT = "text/x-shellscript"
_HOST_TOKEN = HTTPBearer(
    auto_error=False,
    scheme_name="HostToken",
    description="The token of one host, which gets it from `/v1/agent/hosts/join`. It counts until the host leaves.",
)
_POOL_TOKEN = HTTPBearer(
    auto_error=False,
    scheme_name="PoolToken",
    description="What `POST /v1/pools/{pool}/tokens` makes: so many hosts can exchange it for a token of their own.",
)
Sha256 = Annotated[str, Path(description="Of the program", pattern=r"^[0-9a-f]{64}$", examples=["0" * 64])]
_CACHE_CONTROL = {
    "description": "It may be kept: it never changes",
    "schema": {"type": "string"},
    "required": True,
}


@router.post(
    "/v1/agent/hosts/join",
    operation_id="host_join",
    summary="Join a pool",
    responses=documented(401, 409, 413, 422, 503),
)
async def join(
    context: ContextOf,
    turns: TurnsOf,
    body: HostJoinRequest,
    _: Annotated[object, Depends(_POOL_TOKEN)],
    authorization: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> HostJoinReply:
    """A host's first call. The same host gets the same answer again, and uses up nothing."""
    async with turns, context.database.transaction() as connection:
        now_ms = context.clock.now_ms()
        return await join_host(connection, context.settings, context.ids, authorization, body, now_ms=now_ms)


@router.post(
    "/v1/agent/hosts/sync",
    operation_id="host_sync",
    summary="Report a host and hear what should run there",
    responses=documented(401, 409, 413, 422, 503),
)
async def sync(
    context: ContextOf,
    body: HostSyncRequest,
    _: Annotated[object, Depends(_HOST_TOKEN)],
    authorization: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> HostSyncReply:
    """Report what is, hear what should be; waits up to `wait_s` for news."""
    return await sync_host(
        context.database, context.listener, context.settings, context.clock, context.ids, authorization, body
    )


@router.get(
    "/host/{sha256}.pyz",
    operation_id="fetch_host_program",
    summary="The program of hosts of this release",
    response_class=Response,
    responses={
        **documented(404, 422),
        200: {
            "content": {_PROGRAM: {}},
            "description": "A Python zipapp, whose SHA-256 is its name",
            "headers": {"Cache-Control": _CACHE_CONTROL},
        },
    },
)
async def fetch(sha256: Sha256) -> Response:
    """No key is needed: there is nothing secret in it."""
    program = await asyncio.to_thread(host_program)
    if sha256 != program.sha256:
        raise NotFound(f"the host program of this release is not {sha256}: fetch /join.sh again")
    return Response(program.data, media_type=_PROGRAM, headers={"Cache-Control": _FOR_EVER})


@router.get(
    "/join.sh",
    operation_id="fetch_join_script",
    summary="The script that makes a host one of a pool",
    response_class=Response,
    responses={
        **documented(),
        200: {"content": {_SCRIPT: {}}, "description": "For `curl -fsS .../join.sh | sh`"},
    },
)
async def script(context: ContextOf) -> Response:
    """The host that runs it calls the address at which machines reach this service (`ALLPASS_PUBLIC_URL`)."""
    text = await asyncio.to_thread(join_script, context.settings.public_url)
    return Response(text, media_type=_SCRIPT, headers={"Cache-Control": "no-store"})
