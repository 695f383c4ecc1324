"""Sandboxes of a whole environment, page by page, none of them left out."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from modal_proto import api_pb2

Ask = Callable[[api_pb2.SandboxListRequest], Awaitable[api_pb2.SandboxListResponse]]

_MOST_PAGES = 1_000


class TooLong(Exception):
    """The listing does not come to an end."""


async def list_all(ask: Ask, request: api_pb2.SandboxListRequest) -> list[api_pb2.SandboxInfo]:
    """Every sandbox that matches, newest first.

    The server shows what was created strictly before `before_timestamp`. Modal's own client continues at the time of
    the last sandbox it was shown, and so loses all others of that very instant. We continue just after it, and skip
    what we have seen already; only when a whole page holds nothing but one instant does the next begin before it (the
    protocol knows no way to the others, so `before_timestamp` would stand still for ever).
    """
    found: dict[str, api_pb2.SandboxInfo] = {}
    page = api_pb2.SandboxListRequest()
    page.CopyFrom(request)
    for _ in range(_MOST_PAGES):
        shown = (await ask(page)).sandboxes
        if not shown:
            return list(found.values())
        last = shown[-1].created_at
        fresh = [info for info in shown if info.id not in found]
        found.update((info.id, info) for info in fresh)
        page.before_timestamp = math.nextafter(last, math.inf) if fresh else last
    raise TooLong(f"more than {_MOST_PAGES} pages")
