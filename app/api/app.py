"""The ASGI application."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from allpass import __version__
from app.api import agent, apps, errors, job_records, jobs, nodes, submit
from app.api.edge import Edge
from app.api.parts import Parts
from app.api.submit import DirectSubmit
from app.services.authenticate import Authenticator
from app.services.submit_jobs import JobSubmitter

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

_DESCRIPTION = """\
Start fine-tuning in seconds on serverless GPUs; finish it where it is cheap.

* **Keys**: `Authorization: Bearer ak_...`. Scopes: `read`, `submit`, `admin` (all).
* **Errors**: one body for all, `{{"error": {{"code", "message", "param", "request_id", "retryable"}}}}`.
  Codes: {codes}.
* **Repeats**: POSTs take an `Idempotency-Key`; the same request again gets its first answer.
* **Lists**: `next_cursor` is null on the last page; pass it back as `cursor`.
* **Tracing**: `X-Request-Id` is taken from you or made, and returned.
* **Units**: money is integer micro-dollars; times are UTC instants; bodies have at most 1 MiB.
"""


class Api(FastAPI):
    """FastAPI inside the edge: nothing gets in or out around it."""

    def __init__(self, parts: Parts, **options: Any) -> None:
        super().__init__(**options)
        self.state.parts = parts
        self.state.authenticator = Authenticator(parts.database, parts.clock)
        self.state.submitter = JobSubmitter(parts.database, parts.settings, parts.clock, parts.ids)
        direct = DirectSubmit(super().__call__, self.state.authenticator, self.state.submitter)
        self._edge = Edge(direct, lambda: parts.ids.new("req"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._edge(scope, receive, send)


def create_app(parts: Parts, lifespan: Lifespan | None = None) -> FastAPI:
    """Every route of the service, over these parts. Whoever made the parts starts and closes them (`lifespan`)."""
    codes = ", ".join(f"`{code}`" for code in errors.ErrorCode)
    app = Api(
        parts,
        title="Allpass",
        version=__version__,
        description=_DESCRIPTION.format(codes=codes),
        lifespan=lifespan,
        redirect_slashes=False,
    )
    errors.install(app)
    for router in (submit.router, jobs.router, job_records.router, apps.router, nodes.router, agent.router):
        app.include_router(router)
    return app
