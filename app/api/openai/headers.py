"""Headers that OpenAI's API sends with each answer, and its client or people's scripts read."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import CALLER
from app.api.openai.errors import PREFIX
from app.services.access.authenticate import Caller
from app.services.kit.rate_limit import RateLimiter

VERSION = "2020-10-01"


class DoorHeaders:
    """ASGI: adds them to answers below `/openai/`. How many requests are left is of this process alone."""

    def __init__(self, app: ASGIApp, limiter: RateLimiter) -> None:
        self._app = app
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                took_ms = round((time.perf_counter() - began) * 1000)
                told = {"openai-version": VERSION, "openai-processing-ms": str(took_ms), **self._rates(scope)}
                headers = [(name.encode(), value.encode("latin-1")) for name, value in told.items()]
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self._app(scope, receive, with_headers)

    def _rates(self, scope: Scope) -> dict[str, str]:
        caller: Caller | None = scope.get(CALLER)
        if caller is None:
            return {}
        burst, left, full_ms = self._limiter.standing(caller.key_id)
        return {
            "openai-organization": caller.project_id,
            "x-ratelimit-limit-requests": str(burst),
            "x-ratelimit-remaining-requests": str(left),
            "x-ratelimit-reset-requests": f"{full_ms}ms",
        }
