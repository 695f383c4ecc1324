"""The real server on loopback, over a project that has one of everything, each left in a state that answers well."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn

from app.api.context import ApiContext
from app.api.examples import REQUESTS
from app.api.serving import serving_options
from app.core.model.budget import Budget, Period
from app.core.model.job import JobEnd, JobState, PauseReason
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.db.money.budgets import set_budget
from app.db.nodes.join_tokens import add_join_token
from app.db.offers.listed import replace_offers
from app.db.tables import job_events
from app.ports.objects import content_key
from app.services.access.create_key import create_key
from app.services.kit.node_tokens import TokenMint, token_sha256
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.system import RandomIds, SystemClock
from app.wiring import build_server
from tests.api.builders import add_artifact, add_checkpoint, add_chunk, add_ended_run, add_job, add_metric
from tests.api.conftest import Tenant
from tests.bundles import file, tar
from tests.seeds import GIB, T0_MS, new_id, seed_app, seed_node, seed_project, seed_run

BUNDLE = tar([file("train.py")]).ljust(REQUESTS["BundleUploadRequest"]["size_bytes"], b"\0")
FILE = bytes(REQUESTS["UploadRequest"]["files"][0]["size_bytes"])
_KEY = "a signing key of tests, long enough"
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class World:
    """Ids by prefix. `finished` has left its records behind; of the others, each is for one kind of request."""

    api_key: str
    node_token: str
    join_token: str
    ids: dict[str, str]
    finished: str
    steered: str
    cancelled: str
    on_node: str


def settings_for(database_url: str, folder: Path) -> Settings:
    return Settings(
        role="api",
        database_url=database_url,  # type: ignore[arg-type]  # pydantic makes the secret of the text
        objects_dir=folder,
        objects_signing_key=_KEY,  # type: ignore[arg-type]  # pydantic makes the secret of the text
        secret_key="s" * 32,  # type: ignore[arg-type]  # pydantic makes the secret of the text
        rate_limit_per_s=0,  # a 429 would hide every other answer
        agent_poll_s=0.01,  # an agent that has nothing to hear is answered at once
        poll_s=0.2,
    )


def build_world(settings: Settings) -> World:
    """Rows and objects, written before the server starts."""
    return asyncio.run(_build_world(settings))


async def _build_world(settings: Settings) -> World:
    clock = SystemClock()
    url = settings.database_url.get_secret_value()
    database = Database(make_engine(url, pool_size=2, timeout_s=30.0))
    store = DirectoryStore(settings.objects_dir, "http://127.0.0.1:1", _KEY, max_object_bytes=2**30, clock=clock)
    context = ApiContext(database, Listener(url, timeout_s=30.0), store, settings, clock, RandomIds(clock))
    try:
        async with httpx.AsyncClient() as unused:
            return await _seed(context, unused)
    finally:
        await database.close()


async def _seed(context: ApiContext, unused: httpx.AsyncClient) -> World:
    mint, node_id, spare_key = TokenMint.of(context.settings), new_id("node"), new_id("key")
    join_token = mint.join_token(node_id, 1)
    async with context.database.transaction() as connection:
        project_id = await seed_project(connection)
        key = await create_key(connection, project_id, "a", ("admin",), clock=context.clock, ids=context.ids)
        clock, ids = context.clock, context.ids
        await create_key(connection, project_id, "b", ("read",), clock=clock, ids=ids, key_id=spare_key)
        bundle = {"bundle_sha256": hashlib.sha256(BUNDLE).hexdigest(), "bundle_size_bytes": len(BUNDLE)}
        app_id, version_id = await seed_app(connection, project_id, **bundle)
    tenant = Tenant(project_id, app_id, version_id, key, unused)
    for content in (BUNDLE, FILE):
        sha256 = hashlib.sha256(content).hexdigest()
        await context.objects.put(content_key(project_id, sha256), content, sha256=sha256)
    sweep_id = new_id("swp")
    over = {"state": JobState.SUCCEEDED, "end_reason": JobEnd.FINISHED, "epoch": 1, "ended_ms": T0_MS + 1}
    finished = await add_job(context, tenant, sweep_id=sweep_id, **over)
    run_id = await add_ended_run(context, tenant, finished)
    checkpoint_id = await _leave_records(context, tenant, finished, run_id)
    on_node = await add_job(context, tenant, state=JobState.RUNNING, epoch=2)
    async with context.database.transaction() as connection:
        await seed_node(connection, project_id, id=node_id, token_sha256=token_sha256(mint.token(node_id)))
        expires_ms = context.clock.now_ms() + 3_600_000
        await add_join_token(connection, node_id, 1, token_sha256(join_token), expires_ms=expires_ms)
        live_run_id = await seed_run(connection, project_id, on_node, node_id, epoch=2)
        offer = Offer("local", "fn", Tier.SERVERLESS, "A100", 1, 40 * GIB, 8, 64 * GIB, Money.usd("2.10"), 3_000)
        await replace_offers(connection, "local", [offer], now_ms=context.clock.now_ms())
        budget_id = await set_budget(connection, _budget(project_id, spare_key), set_by=spare_key, now_ms=T0_MS)
    named = {"app": app_id, "swp": sweep_id, "ckpt": checkpoint_id, "key": spare_key, "run": live_run_id}
    named["bud"] = budget_id
    steered = await add_job(context, tenant, state=JobState.PAUSED, pause_reason=PauseReason.USER)
    tokens = (key, mint.token(node_id), join_token)
    return World(*tokens, named, finished, steered, await add_job(context, tenant), on_node)


def _budget(project_id: str, key_id: str) -> Budget:
    return Budget(new_id("bud"), project_id, key_id, "local", Period.MONTH, Money.usd(5))


async def _leave_records(context: ApiContext, tenant: Tenant, job_id: str, run_id: str) -> str:
    await add_chunk(context, tenant, job_id, run_id, 1, 0, "step 1\nRuntimeError: CUDA out of memory\n")
    for step in range(5):
        await add_metric(context, job_id, step, loss=2.0 - step / 10)
    await add_artifact(context, job_id, run_id, "adapter/model.safetensors", hashlib.sha256(FILE).hexdigest())
    async with context.database.transaction() as connection:
        values = {"job_id": job_id, "position": 1, "at_ms": T0_MS, "kind": "succeeded", "message": "m", "data": {}}
        await connection.execute(job_events.insert().values(values))
    return await add_checkpoint(context, tenant, job_id, run_id, 1, paths=("adapter/model.safetensors",))


@contextmanager
def serve(settings: Settings) -> Iterator[str]:
    """The address of a server in a thread of its own, with the settings of production; stopped at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        options = serving_options() | {"log_level": "critical"}
        server = uvicorn.Server(uvicorn.Config(build_server(settings), loop="asyncio", lifespan="on", **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="server", daemon=True)
        thread.start()
        until = time.monotonic() + _PATIENCE_S
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < until, "the server takes too long to start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(_PATIENCE_S)
            assert not thread.is_alive(), "the server does not stop"
