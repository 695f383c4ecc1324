"""Where rented machines get uv from, which builds the environments of jobs there."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Response

from allpass.wire.agent import InstallerReply, InstallerRequest
from app.api.agent import CallingNode, ContextOf
from app.api.errors import documented
from app.errors import NotFound
from app.services.nodes.installer import installer_for, installer_named

router = APIRouter(prefix="/v1/agent", tags=["agent"])

_MEDIA_TYPE = "application/gzip"

Sha256 = Annotated[
    str, Path(description="Of the program, as it was told", pattern=r"^[0-9a-f]{64}$", examples=["0" * 64])
]


@router.post(
    "/installer",
    operation_id="agent_find_installer",
    summary="Ask for uv",
    responses=documented(401, 409, 413, 422, 503),
)
async def find(context: ContextOf, _: CallingNode, request: InstallerRequest) -> InstallerReply:
    """Which uv there is for this kind of machine; none is no error."""
    found = await asyncio.to_thread(installer_for, request.machine, context.settings.uv_dir)
    if found is None:
        return InstallerReply()
    return InstallerReply(sha256=found.sha256, size_bytes=found.size_bytes)


@router.get(
    "/installers/{sha256}",
    operation_id="agent_fetch_installer",
    summary="Fetch uv",
    response_class=Response,
    responses={
        **documented(401, 404, 409, 422, 503),
        200: {"content": {_MEDIA_TYPE: {}}, "description": "The program, packed with gzip"},
    },
)
async def fetch(context: ContextOf, _: CallingNode, sha256: Sha256) -> Response:
    """Machines prove its hash before they run it. Those that another release serves are not there."""
    found = await asyncio.to_thread(installer_named, sha256, context.settings.uv_dir)
    if found is None:
        raise NotFound(f"there is no installer {sha256} here: ask for the one of this release")
    return Response(found.packed, media_type=_MEDIA_TYPE)
