"""A world in which one job is on the move: its source on serverless, its target on a rented node."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sqlalchemy import select

from allpass.wire.agent import (
    ArtifactReport,
    CheckpointCommit,
    CheckpointOpen,
    ExitReport,
    File,
    MetricReport,
    MetricReportPoint,
    RunReport,
    TransferReport,
)
from app.control.enact import Dropped, enact
from app.core.model.plan import Action, Migrate, Provision
from app.db import tables as t
from app.db.nodes.agents import NodeIdentity
from app.ports.objects import content_key
from app.services.checkpoints.commit_checkpoint import commit_checkpoint
from app.services.checkpoints.follow_transfers import take_transfer
from app.services.checkpoints.open_checkpoint import open_checkpoint
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.pause_job import pause_job
from app.services.nodes.lose_node import lose_node
from app.services.runs.apply_run_reports import apply_run_reports
from app.services.runs.record_artifacts import record_artifacts
from app.services.runs.record_metrics import record_metrics
from app.storage.directory import DirectoryStore
from tests.control.world import World

SECONDS_OF_TRAINING = 100


class Moving:
    """`source` and `target` are run ids, on `source_node` and `target_node`."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.objects = DirectoryStore(folder, "http://127.0.0.1:1", "k" * 40, max_object_bytes=2**20, clock=world.clock)
        self.job_id = self.source = self.target = self.source_node = self.target_node = ""

    async def begin(self, *, gpus: int = 1) -> None:
        """A job that trains, a free node, and a move to it that prepares."""
        world = self.world
        self.job_id, self.source_node = await world.run_on_serverless()
        world.clock.advance(s=SECONDS_OF_TRAINING)
        await world.beat(self.source_node)
        (run,) = await self.live_runs()
        self.source = run.id
        project_id = world.project_id
        versions = await self.versions(self.job_id)
        rent = Provision(project_id, self.job_id, world.cloud.on_offer[1], "for a move", versions)
        assert await self.enact(rent) == ()
        await world.work()
        self.target_node = (await world.newest_node()).id
        await world.boot(self.target_node)
        assert await self.enact(await self.migrate()) == ()
        (move,) = await world.rows(t.moves)
        self.target = move.target_run_id

    async def migrate(self) -> Migrate:
        versions = await self.versions(self.job_id, self.source, self.target_node)
        return Migrate(self.job_id, self.source, self.target_node, (0,), "moves: it costs less there", versions)

    async def enact(self, *actions: Action) -> tuple[Dropped, ...]:
        context = self.world.control.context
        async with self.world.database.transaction() as connection:
            await context.leader.guard(connection)
            return await enact(connection, context, actions, now_ms=self.world.clock.now_ms())

    async def versions(self, *ids: str) -> tuple[tuple[str, int], ...]:
        tables = {"job": t.jobs, "run": t.runs, "node": t.nodes}
        rows = {row_id: await self.world._row(tables[row_id.partition("_")[0]], row_id) for row_id in sorted(ids)}
        return tuple((row_id, row.row_version) for row_id, row in rows.items())

    # What the agents do

    async def prepared(self) -> bool:
        return await self.says(self.target, "prepared")

    async def says(self, run_id: str, phase: str, step: int = 0, **exit_: Any) -> bool:
        """The agent of this run tells its phase."""
        world = self.world
        node_id, epoch = await self.place(run_id)
        report = RunReport(
            run_id=run_id,
            job_id=self.job_id,
            epoch=epoch,
            phase=phase,  # type: ignore[arg-type]  # any word is tried
            step=step,
            exit=ExitReport(**exit_) if phase == "exited" else None,
            saves=world.saves_when_asked,
        )
        await world.beat(node_id)
        now_ms = world.clock.now_ms()
        return await apply_run_reports(world.database, world.ids, node_id, [report], now_ms=now_ms, fault_budget=3)

    async def saves(self, run_id: str, step: int, *, final: bool = False) -> str:
        """The agent stores and commits a checkpoint. Raises what the server answers."""
        opened, request = await self.opens(run_id, step)
        await self.commits(run_id, opened, final=final)
        return request

    async def opens(self, run_id: str, step: int) -> tuple[str, str]:
        world = self.world
        node_id, epoch = await self.place(run_id)
        content = b"state at step %d" % step
        sha256 = hashlib.sha256(content).hexdigest()
        await self.objects.put(content_key(world.project_id, sha256), content, sha256=sha256)
        piece = File(path="model", sha256=sha256, size_bytes=len(content)).model_dump()
        writer = {"run_id": run_id, "job_id": self.job_id, "epoch": epoch}
        request = CheckpointOpen.model_validate({**writer, "step": step, "files": [piece]})
        node = await self.identity(node_id)
        now_ms = world.clock.now_ms()
        opened = await open_checkpoint(world.database, self.objects, world.ids, node, request, now_ms=now_ms, ttl_s=60)
        return opened.checkpoint_id, sha256

    async def commits(self, run_id: str, checkpoint_id: str, *, final: bool = False) -> None:
        world = self.world
        node_id, epoch = await self.place(run_id)
        commit = CheckpointCommit(job_id=self.job_id, epoch=epoch, final=final)
        node = await self.identity(node_id)
        now_ms = world.clock.now_ms()
        await commit_checkpoint(world.database, self.objects, node, checkpoint_id, commit, now_ms=now_ms, keep_last=3)

    async def measures(self, run_id: str, step: int, at_ms: int) -> None:
        world = self.world
        node_id, epoch = await self.place(run_id)
        point = MetricReportPoint(step=step, at_ms=at_ms, values={"loss": 1.0})
        report = MetricReport(run_id=run_id, job_id=self.job_id, epoch=epoch, points=[point])
        await record_metrics(world.database, await self.identity(node_id), report, now_ms=world.clock.now_ms())

    async def sends(self, run_id: str, done_bytes: int, total_bytes: int) -> None:
        """The agent says how far it is with what it sends."""
        world = self.world
        node_id, epoch = await self.place(run_id)
        writer = {"run_id": run_id, "job_id": self.job_id, "epoch": epoch}
        told = {"kind": "send", "done_bytes": done_bytes, "total_bytes": total_bytes}
        report = TransferReport.model_validate({**writer, **told})
        await take_transfer(world.database, await self.identity(node_id), report, now_ms=world.clock.now_ms())

    async def leaves(self, run_id: str, files: dict[str, bytes], *, final: bool) -> None:
        """The agent stores and registers what the run has left in its folder."""
        world = self.world
        node_id, epoch = await self.place(run_id)
        told = []
        for path, content in files.items():
            sha256 = hashlib.sha256(content).hexdigest()
            await self.objects.put(content_key(world.project_id, sha256), content, sha256=sha256)
            told.append(File(path=path, sha256=sha256, size_bytes=len(content)))
        report = ArtifactReport(run_id=run_id, job_id=self.job_id, epoch=epoch, files=told, joins=True, final=final)
        node = await self.identity(node_id)
        await record_artifacts(world.database, self.objects, node, report, now_ms=world.clock.now_ms())

    async def loses(self, node_id: str) -> None:
        """The machine is gone, and the control plane has found out."""
        world = self.world
        async with world.database.transaction() as connection:
            await lose_node(connection, world.ids, node_id, "silent", now_ms=world.clock.now_ms(), fault_budget=3)

    # What its owner does

    async def pause(self) -> None:
        world = self.world
        async with world.database.transaction() as connection:
            await pause_job(connection, world.ids, world.project_id, self.job_id, now_ms=world.clock.now_ms())

    async def cancel(self) -> None:
        world = self.world
        async with world.database.transaction() as connection:
            await cancel_job(connection, world.ids, world.project_id, self.job_id, now_ms=world.clock.now_ms())

    # Looking

    async def place(self, run_id: str) -> tuple[str, int]:
        """Node and epoch of a run, ended ones too."""
        async with self.world.database.transaction() as connection:
            rows = await connection.execute(
                select(t.allocations.c.node_id, t.run_jobs.c.epoch)
                .join(t.run_jobs, t.run_jobs.c.run_id == t.allocations.c.run_id)
                .where(t.allocations.c.run_id == run_id)
            )
            node_id, epoch = rows.one()
            return str(node_id), int(epoch)

    async def identity(self, node_id: str) -> NodeIdentity:
        node = await self.world.node(node_id)
        return NodeIdentity(node_id, self.world.project_id, node.state)

    async def live_runs(self) -> list[Any]:
        return [run for run in await self.world.rows(t.runs) if run.state != "ended"]

    async def run(self, run_id: str) -> Any:
        return await self.world._row(t.runs, run_id)

    async def move(self) -> Any:
        """The newest."""
        return (await self.world.rows(t.moves))[-1]

    async def states(self) -> tuple[str, str, str, str]:
        """Of the job, its newest move, the source and the target."""
        job, move = await self.world.job(self.job_id), await self.move()
        return job.state, move.state, (await self.run(self.source)).state, (await self.run(self.target)).state


async def saving(moving: Moving) -> None:
    assert await moving.prepared()


async def promoting(moving: Moving) -> None:
    await saving(moving)
    await moving.saves(moving.source, 412, final=True)


async def leaving(moving: Moving) -> None:
    await promoting(moving)
    assert await moving.says(moving.target, "running", 412)


async def _nothing(_moving: Moving) -> None:
    return


REACHES = {"preparing": _nothing, "saving": saving, "promoting": promoting, "leaving": leaving}
