"""Work that is done for as long as somebody waits for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request

from app.errors import UserError

Answer = TypeVar("Answer")


async def while_awaited(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What the work answers. It is ended when the connection is: for requests whose body has been read."""
    asked, gone = asyncio.create_task(work), asyncio.create_task(_ended(request))
    try:
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise UserError("the connection ended before the answer was there")
        return asked.result()
    finally:
        for task in (asked, gone):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _ended(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
