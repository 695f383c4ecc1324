"""Bodies that are no JSON and may be large: read piece by piece, once the caller was let in."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from app.errors import InvalidInput, TooLarge

_LONGEST_S = 120.0


async def read_upload(request: Request, max_bytes: int, too_large: TooLarge) -> bytes:
    """The whole body. Raises `too_large` beyond the limit, and InvalidInput for one that is empty or does not come to
    its end."""
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > max_bytes:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(_LONGEST_S):
            async for piece in request.stream():
                content += piece
                if len(content) > max_bytes:
                    raise too_large
    except TimeoutError:
        message = f"body: had not come within {_LONGEST_S:g} seconds; send a smaller file"
        raise InvalidInput(message, param="body") from None
    except ClientDisconnect:
        raise InvalidInput("body: the connection ended in the middle of it; send it again", param="body") from None
    if not content:
        raise InvalidInput("body: is empty; send the file as it is", param="body")
    return bytes(content)
