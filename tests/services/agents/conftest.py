"""The agent's protocol over HTTP: the real router, a real database and a real store, inside this process."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import Table, select, update

from app.api.app import create_app
from app.api.context import ApiContext
from app.core.model.job import JobState
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunState
from app.db.engine import Database
from app.db.listen import Listener
from app.db.tables import jobs, nodes
from app.ports.objects import content_key
from app.settings import Settings
from app.storage.directory import DirectoryStore
from tests.conftest import CountingIds, ManualClock
from tests.seeds import new_id, seed_app, seed_job, seed_node, seed_project, seed_run

BUNDLE = b"the bundle"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(path: str, data: bytes) -> dict[str, Any]:
    return {"path": path, "sha256": sha(data), "size_bytes": len(data)}


@dataclass
class Place:
    """One job, assigned to one node whose agent has the token `token`."""

    project_id: str
    job_id: str
    node_id: str
    run_id: str
    token: str
    epoch: int = 1

    def report(self, phase: str, **more: Any) -> dict[str, Any]:
        return {"run_id": self.run_id, "job_id": self.job_id, "epoch": self.epoch, "phase": phase, **more}

    def writer(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "job_id": self.job_id, "epoch": self.epoch}

    def job(self) -> dict[str, Any]:
        return {"job_id": self.job_id, "epoch": self.epoch}


class Stage:
    """The service around the agent: builds places, speaks the protocol, looks at rows."""

    def __init__(
        self, context: ApiContext, client: httpx.AsyncClient, clock: ManualClock, ids: CountingIds, app: FastAPI
    ) -> None:
        self.context = context
        self.app = app
        self.database: Database = context.database
        self.objects = context.objects
        self.client = client
        self.clock = clock
        self.ids = ids

    async def place(
        self,
        *,
        node_state: NodeState = NodeState.READY,
        run_state: RunState = RunState.ASSIGNED,
        tier: Tier = Tier.MARKETPLACE,
        **job: Any,
    ) -> Place:
        token = new_id("key")
        digest = hashlib.sha256(token.encode()).digest()
        async with self.database.transaction() as connection:
            project_id = await seed_project(connection)
            app = await seed_app(connection, project_id, bundle_sha256=sha(BUNDLE), bundle_size_bytes=len(BUNDLE))
            columns = {"state": JobState.STARTING, "epoch": 1} | job
            job_id = await seed_job(connection, project_id, app, **columns)
            node_id = await seed_node(connection, project_id, tier=tier, state=node_state, token_sha256=digest)
            run_id = await seed_run(
                connection,
                project_id,
                job_id,
                node_id,
                tier=tier,
                state=run_state,
                running_ms=None,
                created_ms=self.clock.now_ms(),
            )
        return Place(project_id, job_id, node_id, run_id, token)

    async def next_run(self, place: Place) -> Place:
        """Give the job a new run on the same node, as the control loop does."""
        async with self.database.transaction() as connection:
            epoch = (
                await connection.execute(
                    update(jobs)
                    .where(jobs.c.id == place.job_id)
                    .values(epoch=jobs.c.epoch + 1, state=JobState.STARTING)
                    .returning(jobs.c.epoch)
                )
            ).scalar_one()
            run_id = await seed_run(
                connection,
                place.project_id,
                place.job_id,
                place.node_id,
                epoch=epoch,
                state=RunState.ASSIGNED,
                running_ms=None,
            )
            await connection.execute(update(nodes).values(desired_version=nodes.c.desired_version + 1))
        return Place(place.project_id, place.job_id, place.node_id, run_id, place.token, epoch)

    async def post(self, place: Place, path: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {place.token}"}
        return await self.client.post(f"/v1/agent{path}", json=body, headers=headers)

    async def sync(
        self, place: Place, *reports: dict[str, Any], seen: int = 0, wait_ms: int = 0, **more: Any
    ) -> httpx.Response:
        body = {"agent_version": "1", "seen": seen, "wait_ms": wait_ms, "runs": list(reports), **more}
        return await self.post(place, "/sync", body)

    async def running(self, **more: Any) -> Place:
        """A place whose agent has taken its run up and said that user code runs."""
        place = await self.place(**more)
        assert (await self.sync(place, place.report("running"))).status_code == 200
        return place

    async def store(self, place: Place, data: bytes) -> None:
        await self.objects.put(content_key(place.project_id, sha(data)), data, sha256=sha(data))

    def spoil(self, place: Place, data: bytes) -> None:
        """Change one bit of what is stored."""
        path = self.objects.root / content_key(place.project_id, sha(data))
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])

    async def save(self, place: Place, step: int, *files: tuple[str, bytes]) -> str:
        """Open, upload and commit a checkpoint."""
        entries = [entry(path, data) for path, data in files]
        opened = await self.post(place, "/checkpoints", {**place.writer(), "step": step, "files": entries})
        assert opened.status_code == 200, opened.text
        for _, data in files:
            await self.store(place, data)
        checkpoint_id: str = opened.json()["checkpoint_id"]
        committed = await self.post(place, f"/checkpoints/{checkpoint_id}/commit", place.job())
        assert committed.status_code == 200, committed.text
        return checkpoint_id

    async def rows(self, table: Table, **where: Any) -> list[Any]:
        statement = select(table).where(*(table.c[name] == value for name, value in where.items()))
        async with self.database.transaction() as connection:
            return list((await connection.execute(statement.order_by(*table.primary_key.columns))).all())

    async def row(self, table: Table, row_id: str) -> Any:
        (row,) = await self.rows(table, id=row_id)
        return row


@pytest.fixture
async def listener(database_url: str) -> AsyncIterator[Listener]:
    listener = Listener(database_url, timeout_s=30)
    await listener.start()
    yield listener
    await listener.close()


@pytest.fixture
def objects(tmp_path: Path, clock: ManualClock) -> DirectoryStore:
    return DirectoryStore(tmp_path / "objects", "http://127.0.0.1:1", "k" * 32, max_object_bytes=1024**3, clock=clock)


@asynccontextmanager
async def open_stage(
    database: Database,
    database_url: str,
    listener: Listener,
    objects: DirectoryStore,
    clock: ManualClock,
    ids: CountingIds,
) -> AsyncIterator[Stage]:
    settings = Settings(
        database_url=SecretStr(database_url),
        objects_signing_key=SecretStr("k" * 32),
        secret_key=SecretStr("s" * 32),
        agent_poll_s=60,  # so that an answer within it is one to news
    )
    context = ApiContext(database, listener, objects, settings, clock, ids)
    app = create_app(context)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://stage") as client:
        yield Stage(context, client, clock, ids, app)


@pytest.fixture
async def stage(
    database: Database,
    database_url: str,
    listener: Listener,
    objects: DirectoryStore,
    clock: ManualClock,
    ids: CountingIds,
) -> AsyncIterator[Stage]:
    async with open_stage(database, database_url, listener, objects, clock, ids) as stage:
        yield stage
