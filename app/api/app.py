"""The ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from allpass import __version__
from app.api import (
    agent,
    agent_probe,
    agent_program,
    apps,
    audit,
    budgets,
    calibrations,
    defragmentations,
    errors,
    finetunes,
    fragmentation,
    hosts,
    images,
    installer,
    job_controls,
    job_metrics,
    job_records,
    job_sizes,
    job_table,
    jobs,
    keys,
    limits,
    log_search,
    model_names,
    model_servers,
    nodes,
    offers,
    openapi,
    pages,
    plan,
    pools,
    pressure,
    price_lists,
    project,
    projects,
    prometheus,
    providers,
    reach,
    reservations,
    secrets,
    session,
    simulations,
    standby,
    streams,
    submit,
    ticks,
    usage,
)
from app.api.audit import AuditTrail
from app.api.auth import Door
from app.api.context import ApiContext
from app.api.edge import Edge
from app.api.measure import RequestMeter, Tally
from app.api.openai import files as door_files
from app.api.openai import models as door_models
from app.api.openai import text as door_text
from app.api.openai import tunings as door_tunings
from app.api.openai import uploads as door_uploads
from app.api.openai.doors import Doors
from app.api.openai.headers import DoorHeaders
from app.api.submit import DirectSubmit
from app.services.access.authenticate import Authenticator
from app.services.access.sign_in import session_times
from app.services.apps.check_bundle import BundleChecks
from app.services.apps.keep_upload import Uploads
from app.services.jobs.submit_finetune import Finetunes, new_desk
from app.services.jobs.submit_jobs import JobSubmitter
from app.services.kit.rate_limit import RateLimiter
from app.services.nodes.advise_node import Advisor
from app.services.nodes.reach.keys import ReachKeys
from app.services.reading.follow_events import EventHub
from app.services.reading.follow_lines import LineHub
from app.services.reading.watched_lines import LineWriter

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

_DESCRIPTION = """\
Start fine-tuning in seconds on serverless GPUs; finish it where it is cheap.

* **Keys**: `Authorization: Bearer ak_...`. Scopes: `read`, `submit`, `admin` (all).
* **Browsers** sign in with a key (`POST /v1/session`) and then send a cookie in its place; what is neither GET nor HEAD
  needs `X-CSRF-Token` beside it. A key goes before a cookie. Agents' routes take none.
* **Errors**: one body for all, `{{"error": {{"code", "message", "param", "request_id", "retryable"}}}}`.
  Codes: {codes}.
* **Repeats**: every POST takes an `Idempotency-Key`. Within a day, the same request (key, path and body, byte for byte)
  gets its first answer again, with `Idempotent-Replayed: true`, and does nothing; another one under the key is a 409.
  Of requests that are sent at once, one is carried out, and all get its answer. An error leaves the key unused. Keys
  belong to your project. Kept answers are encrypted. PUT, PATCH and DELETE need no key: they may be sent again as
  they are.
* **Lists**: `limit` and `cursor` in all of them; `next_cursor` is null on the last page, else pass it back as `cursor`.
* **Tracing**: `X-Request-Id` is taken from you or made, and returned.
* **Rates**: each key has a bucket of requests; `429` says in `Retry-After` when to go on.
* **Units**: money is integer micro-dollars; times are UTC instants.
* **Limits**: each field has its own, in its schema. Bodies have at most 1 MiB, URLs 16 KiB (414), headers 64 KiB (431).
"""


class EdgedApi(FastAPI):
    """FastAPI inside the edge: nothing gets in or out around it."""

    def __init__(self, context: ApiContext, **options: Any) -> None:
        super().__init__(**options)
        self.state.context = context
        self.state.authenticator = Authenticator(context.database, context.clock, session_times(context.settings))
        self.state.submitter = JobSubmitter(context.database, context.settings, context.clock, context.ids)
        limiter = RateLimiter(context.settings.rate_limit_per_s, context.settings.rate_limit_burst, context.clock)
        self.state.door = Door(self.state.authenticator, limiter)
        self.state.sign_ins = session.attempts(context.settings, context.clock)
        self.state.event_hub = EventHub(
            context.database, context.listener, streams.encode_event, poll_s=context.settings.poll_s
        )
        self.state.line_hub = LineHub(
            context.database,
            context.clock,
            LineWriter(job_table.encode_line, job_table.encode_changes, job_table.encode_reset, job_table.encode_still),
        )
        self.state.looking = asyncio.Semaphore(1)
        self.state.tally = Tally()
        self.state.reach_keys = ReachKeys(context.settings.secret_key.get_secret_value())
        self.state.reach_clock = context.clock
        self.state.turns = asyncio.Semaphore(agent.AGENTS_AT_ONCE)
        self.state.node_rates = agent.NodeRates.of(context.settings, context.clock)
        self.state.advisor = Advisor(context.database, context.objects, context.settings, context.clock)
        self.state.bundles = BundleChecks(max_bytes=context.settings.max_bundle_bytes)
        self.state.uploads = Uploads(context.database, context.objects, context.clock, context.settings.max_data_bytes)
        self.state.finetunes = Finetunes(
            context.database,
            context.objects,
            context.clock,
            context.ids,
            self.state.bundles,
            self.state.submitter,
            self.state.uploads,
            new_desk(),
        )
        self.state.simulating = simulations.new_desk()
        self.state.planning = asyncio.Semaphore(1)  # a plan is computing alone: more at once would only wait
        self.state.monitor = prometheus.ApiMetrics(context, self.state.tally, self.state.event_hub)
        self.state.doors = Doors(context, self.state.bundles, self.state.submitter)
        direct = DirectSubmit(super().__call__, self.state.door, self.state.submitter)
        measured = RequestMeter(AuditTrail(direct, context.database, context.clock), self.state.tally)
        self._edge = Edge(DoorHeaders(measured, limiter), lambda: context.ids.new("req"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._edge(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, complete with examples and error codes."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.finish(super().openapi())
        return self.openapi_schema


def create_app(context: ApiContext, lifespan: Lifespan | None = None) -> FastAPI:
    """Every route of the service, over this context. Whoever made what is in it starts and closes it (`lifespan`)."""
    codes = ", ".join(f"`{code}`" for code in errors.ErrorCode)
    app = EdgedApi(
        context,
        title="Allpass",
        version=__version__,
        description=_DESCRIPTION.format(codes=codes),
        lifespan=lifespan,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        openapi_tags=openapi.TAGS,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    errors.install(app)
    app.include_router(finetunes.router)
    for router in (plan.router, job_table.router):  # before the routes to whose `{job_id}` their paths would be ids
        app.include_router(router)
    for router in (submit.router, jobs.router, job_records.router, apps.router, nodes.router, agent.router):
        app.include_router(router)
    app.include_router(job_sizes.router)
    app.include_router(job_controls.router)
    app.include_router(standby.router)
    app.include_router(standby.windows_router)
    app.include_router(reservations.router)
    app.include_router(agent_probe.router)
    app.include_router(agent_program.router)
    app.include_router(installer.router)
    app.include_router(hosts.router)
    app.include_router(reach.router)
    for router in (door_files.router, door_uploads.router, door_tunings.router, door_models.router, door_text.router):
        app.include_router(router)
    app.include_router(model_servers.router)
    for router in (
        pressure.router,
        ticks.router,
        keys.router,
        session.router,
        secrets.router,
        audit.router,
        calibrations.router,
        pools.router,
        defragmentations.router,
        fragmentation.router,
        project.router,
        projects.router,
        limits.router,
        budgets.router,
        model_names.router,
    ):
        app.include_router(router)
    for router in (
        streams.router,
        log_search.router,
        job_metrics.router,
        usage.router,
        offers.router,
        providers.router,
        images.router,
        price_lists.router,
        simulations.router,
        prometheus.router,
        pages.router,
    ):
        app.include_router(router)
    return app
