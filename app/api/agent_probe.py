"""Bytes that mean nothing, for a machine that measures how fast it downloads from here."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from app.api.agent import CallingNode, RatesOf
from app.api.errors import documented

router = APIRouter(prefix="/v1/agent", tags=["agent"])

MOST_BYTES = 64_000_000
_BLOCK = secrets.token_bytes(256 * 1024)  # more than a compressor on the way looks back
_BYTES = "application/octet-stream"


@router.get(
    "/probe",
    operation_id="agent_probe",
    summary="Measure a download",
    responses={
        **documented(401, 422, 429, 503),
        200: {"description": "So many bytes", "content": {_BYTES: {}}},
    },
    response_class=Response,
)
async def probe(
    node: CallingNode,
    rates: RatesOf,
    size_bytes: Annotated[int, Query(alias="bytes", ge=1, le=MOST_BYTES, description="How many", examples=[8_000_000])],
) -> StreamingResponse:
    """Bytes that mean nothing. They go out as fast as they are read, a few times for each machine."""
    rates.probes.take(node.node_id)
    headers = {"Content-Length": str(size_bytes), "Cache-Control": "no-store"}
    return StreamingResponse(_blocks(size_bytes), media_type=_BYTES, headers=headers)


async def _blocks(left: int) -> AsyncIterator[bytes]:
    while left > 0:
        yield _BLOCK[:left]
        left -= len(_BLOCK)
