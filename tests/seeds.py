"""Rows for tests: the smallest valid world, with only what a test cares about spelled out."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import pinned
from app.core.model.ids import Prefix, make_id
from app.core.model.job import JobState, Resources
from app.core.model.node import BillingStart, NodeState, Tier
from app.core.model.run import RunState
from app.db.tables import allocations, app_versions, apps, jobs, nodes, projects, run_jobs, runs

T0_MS = 1_800_000_000_000
GIB = 1024**3
_count = itertools.count(1_000_000)


def new_id(prefix: Prefix) -> str:
    """An id that no other row of the test session has."""
    return make_id(prefix, T0_MS, next(_count))


async def seed_project(connection: AsyncConnection, name: str = "") -> str:
    project_id = new_id("proj")
    await connection.execute(projects.insert().values(id=project_id, name=name or project_id, created_ms=T0_MS))
    return project_id


async def seed_app(connection: AsyncConnection, project_id: str, **columns: Any) -> tuple[str, str]:
    """An app with its first version: (app id, version id)."""
    app_id, version_id = new_id("app"), new_id("ver")
    await connection.execute(
        apps.insert().values(
            id=app_id, project_id=project_id, name=app_id, user_name="ada", version=1, created_ms=T0_MS
        )
    )
    values: dict[str, Any] = {
        "base_image": None,
        "pip": [],
        "environment_sha256": "e" * 64,
        "bundle_sha256": "b" * 64,
        "bundle_size_bytes": 10,
        "entrypoint": "train.py",
        "created_ms": T0_MS,
    }
    await connection.execute(
        app_versions.insert().values(id=version_id, app_id=app_id, version=1, **(values | columns))
    )
    return app_id, version_id


async def seed_job(
    connection: AsyncConnection, project_id: str, app: tuple[str, str] | None = None, **columns: Any
) -> str:
    """A job, `queued` unless said otherwise; its app is made on the way when none is given."""
    app_id, version_id = app or await seed_app(connection, project_id)
    values = {
        "id": new_id("job"),
        "project_id": project_id,
        "app_id": app_id,
        "app_version_id": version_id,
        "name": "job",
        "parameters": {},
        "template": {},
        "resources": resources_json(Resources()),
        "kind": "batch",
        "priority_class": "guaranteed",
        "start": "now",
        "checkpoint_interval_s": 300,
        "deadline_ms": T0_MS + 6 * 3_600_000,
        "deadline_given": True,
        "state": JobState.QUEUED,
        "submitted_ms": T0_MS,
    } | columns
    await connection.execute(jobs.insert().values(values))
    return str(values["id"])


async def seed_node(connection: AsyncConnection, project_id: str, **columns: Any) -> str:
    """A node, `ready` on the marketplace with one A100 unless said otherwise."""
    values = {
        "id": new_id("node"),
        "project_id": project_id,
        "provider": "local",
        "tier": Tier.MARKETPLACE,
        "offer": {},
        "gpu_type": "A100",
        "gpu_count": 1,
        "gpu_memory_bytes": 40 * GIB,
        "cpus": 8,
        "memory_bytes": 64 * GIB,
        "region": "",
        "host": "",
        "image": pinned.IMAGE,
        "price_micros_per_hour": 740_000,
        "billing_unit_ms": 1000,
        "billing_starts": BillingStart.READY,
        "billing_minimum_ms": 0,
        "state": NodeState.READY,
        "requested_ms": T0_MS,
        "expected_ready_ms": T0_MS + 36_000,
        "startup_deadline_ms": T0_MS + 600_000,
    } | columns
    await connection.execute(nodes.insert().values(values))
    return str(values["id"])


async def seed_run(
    connection: AsyncConnection,
    project_id: str,
    job_id: str,
    node_id: str,
    *,
    epoch: int = 1,
    gpu_indices: tuple[int, ...] = (0,),
    **columns: Any,
) -> str:
    """A live run of one job on one node, `running` unless said otherwise. The job's row keeps its own epoch."""
    values = {
        "id": new_id("run"),
        "project_id": project_id,
        "tier": Tier.MARKETPLACE,
        "state": RunState.RUNNING,
        "created_ms": T0_MS,
        "running_ms": T0_MS,
    } | columns
    await connection.execute(runs.insert().values(values))
    await connection.execute(run_jobs.insert().values(run_id=values["id"], job_id=job_id, epoch=epoch))
    await connection.execute(
        allocations.insert().values(
            id=new_id("aloc"),
            run_id=values["id"],
            node_id=node_id,
            gpu_indices=list(gpu_indices),
            from_ms=T0_MS,
        )
    )
    return str(values["id"])


def resources_json(resources: Resources) -> dict[str, Any]:
    """Resources as the jobs table keeps them."""
    return asdict(resources)
