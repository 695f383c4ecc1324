"""Where rented machines fetch their program from, before they are anybody."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.api.errors import documented
from app.errors import NotFound
from app.services.nodes.agent_program import agent_program

router = APIRouter(tags=["agent"])

_MEDIA_TYPE = "application/octet-stream"
_FOR_EVER = "public, max-age=31536000, immutable"  # another content has another name

Sha256 = Annotated[
    str, Path(description="Of the program, as its machine was told it", pattern=r"^[0-9a-f]{64}$", examples=["0" * 64])
]


@router.get(
    "/agent/{sha256}.pyz",
    operation_id="fetch_agent_program",
    summary="The program of this release",
    response_class=Response,
    responses={
        **documented(404, 422),
        200: {
            "content": {_MEDIA_TYPE: {}},
            "description": "A Python zipapp, whose SHA-256 is its name",
            "headers": {
                "Cache-Control": {
                    "description": "It may be kept: it never changes",
                    "schema": {"type": "string"},
                    "required": True,
                }
            },
        },
    },
)
async def fetch(sha256: Sha256) -> Response:
    """No key is needed: there is nothing secret in it. Machines verify it before they run it. One content alone is
    there, that of the release that answers."""
    program = await asyncio.to_thread(agent_program)
    if sha256 != program.sha256:
        raise NotFound(f"the agent of this release is not {sha256}: another release ordered that machine")
    return Response(program.data, media_type=_MEDIA_TYPE, headers={"Cache-Control": _FOR_EVER})
