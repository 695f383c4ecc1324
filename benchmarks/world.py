"""What the database benchmarks share: a fresh PostgreSQL on tmpfs, a project with an app and a key, one request."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from allpass.wire.jobs import JobRequest
from app.db.access.projects import ensure_project
from app.db.apps.versions import add_version, ensure_app
from app.db.engine import Database, make_engine
from app.db.migrate import upgrade
from app.services.access.create_key import create_key
from app.stack.postgres import EmbeddedPostgres
from app.system import RandomIds, SystemClock
from benchmarks.submit_server import CONTENT, new_job

CONNECTIONS = 8
BODY = {
    "name": "llama-3-8b",
    "template": {
        "model": {"name": "meta-llama/Meta-Llama-3-8B", "parameters": 8_000_000_000},
        "training": {"steps": 3120, "batch_size": 16, "sequence_length": 2048, "method": "lora", "precision": "bf16"},
        "gpu": {"count": 1, "type": "A100"},
        "caps": {"max_cost_usd": 12},
        "labels": {"team": "research"},
    },
    "parameters": {"learning_rate": 2e-4, "seed": 17, "dataset": "alpaca"},
    "soft_deadline": "6hr",
}


@contextmanager
def fresh_world() -> Iterator[dict[str, Any]]:
    """A migrated database with default durability settings, and all that a submission needs, as plain values."""
    with tempfile.TemporaryDirectory(prefix="allpass-benchmark-", dir=tmpfs()) as folder:
        server = EmbeddedPostgres(Path(folder) / "postgres", settings=())
        server.start()
        try:
            upgrade(server.url())
            yield asyncio.run(_make_world(server.url(), folder))
        finally:
            server.stop()


def storage() -> str:
    """Where the database lies, in words."""
    return "temporary folder: /dev/shm cannot be written" if tmpfs() is None else "/dev/shm (tmpfs)"


def ratios(rates: Mapping[str, Sequence[float]], name: str, base: str) -> list[float]:
    """What was measured in the same round, divided."""
    return [one / other for one, other in zip(rates[name], rates[base], strict=True)]


def medians(rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in rates.items()}


def tmpfs() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


async def _make_world(database_url: str, folder: str) -> dict[str, Any]:
    clock = SystemClock()
    ids = RandomIds(clock)
    database = Database(make_engine(database_url, pool_size=1, timeout_s=30))
    async with database.transaction() as connection:
        project_id = await ensure_project(connection, "benchmark", clock=clock, ids=ids)
        key = await create_key(connection, project_id, "benchmark", ("submit",), clock=clock, ids=ids)
        app_id, _ = await ensure_app(connection, ids.new("app"), project_id, "app", "ada", now_ms=clock.now_ms())
        version_id = ids.new("ver")
        await add_version(connection, app_id, version_id, 1, CONTENT, "ada", now_ms=clock.now_ms())
    await database.close()
    body = BODY | {"app_id": app_id}
    row = new_job(JobRequest.model_validate(body), project_id, app_id, version_id)
    return {
        "database_url": database_url,
        "folder": folder,
        "connections": CONNECTIONS,
        "project_id": project_id,
        "key": key,
        "body": body,
        "row": {**row.own._asdict(), **row.requested._asdict(), **row.stated._asdict()},
    }
