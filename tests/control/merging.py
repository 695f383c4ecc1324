"""A world in which two jobs are merged, in turn: the second waits for what the first will have learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.control.enact import Dropped
from app.core.model.merge import MergeMode
from app.core.model.plan import Merge, Split
from app.db import tables as t
from app.db.tables import merges
from tests.control.moving import Moving
from tests.control.world import World


class Merging:
    """`lead` and `companion` are told what their agents and owners do, as in `Moving`. `opened`: a checkpoint of the
    lead that waits for its commit."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.opened, self.table = "", merges
        self.lead, self.companion = Moving(world, folder), Moving(world, folder)

    async def begin(self, *, trains: bool = True) -> None:
        """Both wait and are merged; then the lead trains, if it `trains`."""
        for job in (self.lead, self.companion):
            job.job_id = await self.world.submit()
        assert await self.merge() == ()
        if trains:
            await self.train(self.lead)

    async def merge(self, mode: MergeMode = MergeMode.IN_TURN, *, reason: str = "they help each other") -> Any:
        return await self.lead.enact(await self.proposal(mode, reason=reason))

    async def proposal(self, mode: MergeMode = MergeMode.IN_TURN, *, reason: str = "they help each other") -> Merge:
        ids = (self.lead.job_id, self.companion.job_id)
        return Merge(*ids, mode, 1, 0.8, 0.3, reason, await self.lead.versions(*ids))

    async def split(self) -> tuple[Dropped, ...]:
        row = await self.row()
        return await self.split_of(row.id, row.row_version)

    async def split_of(self, merge_id: str, row_version: int) -> tuple[Dropped, ...]:
        why, versions = "two epochs without better validation", ((merge_id, row_version),)
        return await self.lead.enact(Split(self.lead.job_id, self.companion.job_id, merge_id, why, versions))

    async def place(self, job: Moving) -> str:
        """Decisions, until one of them has given this job a place; its node."""
        for _ in range(4):
            await self.world.decide()
            await self.world.work()
            for node in await self.world.rows(t.nodes):
                if node.state in ("requested", "booting"):
                    await self.world.boot(node.id)
            mine = [run.id for run in await job.live_runs() if await self._runs(run.id, job.job_id)]
            if mine:
                (job.source,) = mine
                job.source_node, _ = await job.place(job.source)
                return job.source_node
        raise AssertionError(f"{job.job_id} is given no place")

    async def train(self, job: Moving) -> None:
        await self.place(job)
        assert await job.says(job.source, "running")

    async def finish_lead(self, step: int = 40) -> None:
        """Its last step is saved, and its code ends well."""
        await self.lead.saves(self.lead.source, step)
        assert await self.lead.says(self.lead.source, "exited", step=step, exit_code=0)

    async def row(self) -> Any:
        """The newest merge."""
        return (await self.world.rows(merges))[-1]

    async def said(self, job: Moving, kind: str) -> list[str]:
        rows = await self.world.rows(t.job_events)
        return [row.message for row in rows if row.job_id == job.job_id and row.kind == kind]

    async def _runs(self, run_id: str, job_id: str) -> bool:
        return any((row.run_id, row.job_id) == (run_id, job_id) for row in await self.world.rows(t.run_jobs))
