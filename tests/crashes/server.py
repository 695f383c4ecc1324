"""The server process as a test sees it: everything in it is built from settings and the database alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from allpass.wire.agent import (
    ArtifactReport,
    CheckpointCommit,
    CheckpointOpen,
    CheckpointOpened,
    JoinRequest,
    MetricReport,
    SyncReply,
    SyncRequest,
)
from allpass.wire.controls import JobUpdate
from allpass.wire.jobs import JobRequest
from app.control.caps import hold_to_caps
from app.control.meter import read_meters
from app.control.moves import look_after_moves
from app.control.prices import refresh_offers
from app.control.service import ControlService
from app.control.sweep import sweep
from app.core.model.node import ProviderTraits
from app.core.model.offer import Offer
from app.db.access.idempotency import RequestKey
from app.db.engine import Database
from app.db.listen import Listener
from app.db.nodes.agents import NodeIdentity
from app.ports.clock import Clock, IdSource
from app.ports.objects import ObjectStore
from app.ports.provider import Machine, MachineRequest
from app.services.checkpoints.commit_checkpoint import commit_checkpoint
from app.services.checkpoints.open_checkpoint import open_checkpoint
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.pause_job import pause_job
from app.services.jobs.resume_job import resume_job
from app.services.jobs.submit_jobs import JobSubmitter
from app.services.jobs.update_job import update_job
from app.services.kit.node_tokens import TokenMint
from app.services.nodes.advise_node import Advisor
from app.services.nodes.authenticate_node import authenticate_node
from app.services.nodes.join_node import join_node
from app.services.nodes.sync_agent import sync_agent
from app.services.runs.record_artifacts import record_artifacts
from app.services.runs.record_metrics import record_metrics
from app.services.sizes.resize_job import resize_job
from app.settings import Settings
from tests.control.fake_provider import FakeProvider
from tests.crashes.process import Lines, still_alive

T = TypeVar("T")


class Wire:
    """A company at the other end of a wire: a caller may die before its call arrives, and before the answer does."""

    def __init__(self, cloud: FakeProvider) -> None:
        self._cloud = cloud
        self.name = cloud.name

    def traits(self) -> tuple[ProviderTraits, ...]:
        return self._cloud.traits()

    async def offers(self) -> list[Offer]:
        return await self._over(self._cloud.offers)

    async def create(self, request: MachineRequest) -> Machine:
        return await self._over(lambda: self._cloud.create(request))

    async def get(self, ref: str) -> Machine | None:
        return await self._over(lambda: self._cloud.get(ref))

    async def find(self, label: str) -> list[Machine]:
        return await self._over(lambda: self._cloud.find(label))

    async def list_owned(self) -> list[Machine]:
        return await self._over(self._cloud.list_owned)

    async def terminate(self, ref: str) -> None:
        await self._over(lambda: self._cloud.terminate(ref))

    async def logs(self, ref: str, tail_lines: int) -> str:
        return await self._over(lambda: self._cloud.logs(ref, tail_lines))

    async def close(self) -> None:
        return None

    async def _over(self, call: Callable[[], Awaitable[T]]) -> T:
        still_alive()
        await asyncio.sleep(0)  # dying here, the call never left
        answer = await call()
        await asyncio.sleep(0)  # dying here, it had its effect, and nobody was told
        return answer


class Server:
    """One life of the server. Its methods are what clients and agents call, and what its own timetable does."""

    def __init__(
        self,
        lines: Lines,
        cloud: FakeProvider,
        objects: ObjectStore,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self.database = Database(lines.engine)
        self._objects = objects
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._listener = Listener(settings.database_url.get_secret_value(), timeout_s=5)  # not started: nobody waits
        self._control = ControlService(
            database=self.database,
            listener=self._listener,
            providers={cloud.name: Wire(cloud)},
            settings=settings,
            clock=clock,
            ids=ids,
        )
        self._submitter = JobSubmitter(self.database, settings, clock, ids)
        self._turns = asyncio.Semaphore(2)
        self._advisor = Advisor(self.database, objects, settings, clock)

    # Its timetable

    async def begin(self) -> None:
        """A new term."""
        assert await self._control.context.leader.step()

    async def refresh_offers(self) -> None:
        await refresh_offers(self._control.context)

    async def decide(self) -> None:
        await self._control.loop.tick("test")

    async def work(self) -> None:
        """Carry out what is due, until nothing is."""
        while await self._control.workers.work_once():
            pass

    async def check_heartbeats(self) -> None:
        await self._control.heartbeats.check()
        await look_after_moves(self._control.context)

    async def sweep(self) -> None:
        await sweep(self._control.context)

    async def meter(self) -> None:
        await read_meters(self._control.context)
        await hold_to_caps(self._control.context)

    # Clients

    async def submit(self, project_id: str, request: JobRequest, key: RequestKey) -> str:
        return (await self._submitter.submit_job(project_id, request, key)).owner_id

    async def cancel(self, project_id: str, job_id: str) -> None:
        async with self.database.transaction() as connection:
            await cancel_job(connection, self._ids, project_id, job_id, now_ms=self._clock.now_ms())

    async def pause(self, project_id: str, job_id: str) -> None:
        async with self.database.transaction() as connection:
            await pause_job(connection, self._ids, project_id, job_id, now_ms=self._clock.now_ms())

    async def resume(self, project_id: str, job_id: str) -> None:
        async with self.database.transaction() as connection:
            await resume_job(connection, project_id, job_id, now_ms=self._clock.now_ms())

    async def resize(self, project_id: str, job_id: str, gpus: int) -> None:
        async with self.database.transaction() as connection:
            await resize_job(connection, self._ids, project_id, job_id, gpus, now_ms=self._clock.now_ms())

    async def update(self, project_id: str, job_id: str, change: JobUpdate) -> None:
        now_ms = self._clock.now_ms()
        async with self.database.transaction() as connection:
            await update_job(connection, self._settings, project_id, job_id, change, now_ms=now_ms)

    # Agents

    async def join(self, token: str, request: JoinRequest) -> str:
        """The node's token."""
        mint, now_ms = TokenMint.of(self._settings), self._clock.now_ms()
        reply = await join_node(self.database, mint, f"Bearer {token}", request, now_ms=now_ms)
        return reply.node_token

    async def sync(self, token: str, request: SyncRequest) -> SyncReply:
        node = await self._caller(token)
        return await sync_agent(
            self.database,
            self._listener,
            self._settings,
            self._clock,
            self._ids,
            self._turns,
            self._advisor,
            node,
            request,
        )

    async def open_checkpoint(self, token: str, request: CheckpointOpen) -> CheckpointOpened:
        node = await self._caller(token)
        ttl_s = self._settings.signed_url_ttl_s
        now_ms = self._clock.now_ms()
        return await open_checkpoint(self.database, self._objects, self._ids, node, request, now_ms=now_ms, ttl_s=ttl_s)

    async def commit_checkpoint(self, token: str, checkpoint_id: str, request: CheckpointCommit) -> None:
        node = await self._caller(token)
        now_ms = self._clock.now_ms()
        keep_last = self._settings.checkpoint_keep_last
        await commit_checkpoint(
            self.database, self._objects, node, checkpoint_id, request, keep_last=keep_last, now_ms=now_ms
        )

    async def record_metrics(self, token: str, request: MetricReport) -> None:
        node = await self._caller(token)
        await record_metrics(self.database, node, request, now_ms=self._clock.now_ms())

    async def record_artifacts(self, token: str, request: ArtifactReport) -> None:
        node = await self._caller(token)
        await record_artifacts(self.database, self._objects, node, request, now_ms=self._clock.now_ms())

    async def _caller(self, token: str) -> NodeIdentity:
        return await authenticate_node(self.database, f"Bearer {token}")
