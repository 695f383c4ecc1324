"""Where the service asks itself, through its public address, what a rented machine would meet on the way."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from app.ports.clock import Clock
from app.services.nodes.reach.keys import ReachKeys, ReachQuestion

router = APIRouter(include_in_schema=False)


async def keys_of(request: Request) -> ReachKeys:
    keys: ReachKeys = request.app.state.reach_keys
    return keys


async def clock_of(request: Request) -> Clock:
    clock: Clock = request.app.state.reach_clock
    return clock


@router.api_route("/v1/agent/reach/{nonce}", methods=["GET", "POST"])
async def reach(
    request: Request,
    keys: Annotated[ReachKeys, Depends(keys_of)],
    clock: Annotated[Clock, Depends(clock_of)],
    nonce: Annotated[str, Path(max_length=64)],
    hold_s: Annotated[int, Query(ge=0, le=3600)],
    expires_ms: Annotated[int, Query(ge=0, le=2**53)],
    signature: Annotated[str, Query(max_length=128)],
) -> dict[str, object]:
    """Proves that this installation answers. Nothing is sent before the hold is over, as with an agent's long poll."""
    keys.check(ReachQuestion(nonce, hold_s, expires_ms), signature, now_ms=clock.now_ms())
    received = len(await request.body())
    await asyncio.sleep(hold_s)
    return {"answer": keys.answer(nonce), "received_bytes": received, "now_ms": clock.now_ms()}
