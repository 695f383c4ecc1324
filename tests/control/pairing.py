"""A world in which two jobs train side by side: one process, two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import select

from allpass.wire.agent import ExitReport, RunReport
from app.control.enact import Dropped
from app.core.model.merge import MergeMode
from app.core.model.plan import Action, Demote, Merge
from app.core.model.snapshot import Snapshot
from app.db import tables as t
from app.db.decisions.snapshots import freeze, read_snapshot
from app.db.runs.desired_state import RunOrder, orders
from app.db.tables import merges
from app.services.runs.apply_run_reports import apply_run_reports
from tests.control.moving import Moving
from tests.control.world import World

LIVE = ("assigned", "starting", "running", "stopping")


class Pair:
    """`lead` and `companion` are the two jobs with their runs (`source`), both on `node_id`."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.lead, self.companion = Moving(world, folder), Moving(world, folder)
        self.node_id = self.merge_id = ""

    @property
    def sides(self) -> tuple[Moving, Moving]:
        return self.lead, self.companion

    def other(self, side: Moving) -> Moving:
        return self.companion if side is self.lead else self.lead

    async def merge(self) -> None:
        """Two new jobs, merged, and nowhere yet."""
        for side in self.sides:
            side.job_id = await self.world.submit()
        first, second = self.lead.job_id, self.companion.job_id
        together = Merge(
            first,
            second,
            MergeMode.TOGETHER,
            1,
            0.9,
            0.2,
            "they help each other",
            await self.lead.versions(first, second),
        )
        assert await self.enact(together) == ()
        self.merge_id = (await self.world.rows(merges))[-1].id

    async def place(self) -> None:
        """By the policy, on serverless; the machine comes up."""
        await self.world.decide()
        await self.world.work()
        await self.find()
        await self.world.boot(self.node_id)

    async def find(self) -> None:
        """Their newest runs."""
        held = {row.job_id: row.run_id for row in sorted(await self.world.rows(t.run_jobs), key=lambda row: row.epoch)}
        for side in self.sides:
            side.source = held[side.job_id]
        self.node_id, _epoch = await self.lead.place(self.lead.source)

    async def begin(self, state: str = "running") -> None:
        """Both as far as `state`: assigned, starting, running, or stopping."""
        await self.merge()
        await self.place()
        if state == "assigned":
            return
        for side in self.sides:
            await self.says(side, "preparing")
        if state == "starting":
            return
        for side in self.sides:
            await self.says(side, "running")
        if state == "stopping":
            await self.demote()

    async def demote(self) -> tuple[Dropped, ...]:
        """The policy's decision, about the one run that it sees."""
        (run,) = (await self.snapshot()).runs
        return await self.demote_run(run.run_id)

    async def demote_run(self, run_id: str) -> tuple[Dropped, ...]:
        """What is not so any more is dropped."""
        versions = await self.lead.versions(self.lead.job_id, run_id)
        return await self.enact(Demote(self.lead.job_id, run_id, "for its place", versions))

    async def enact(self, *actions: Action) -> tuple[Dropped, ...]:
        return await self.lead.enact(*actions)

    async def says(self, side: Moving, phase: str, step: int = 0, tokens: int | None = None, **exit_: Any) -> bool:
        """Its agent tells the phase of one side."""
        world = self.world
        node_id, epoch = await side.place(side.source)
        report = RunReport(
            run_id=side.source,
            job_id=side.job_id,
            epoch=epoch,
            phase=phase,  # type: ignore[arg-type]  # any word is tried
            step=step,
            tokens=tokens,
            exit=ExitReport(**exit_) if phase == "exited" else None,
            saves=world.saves_when_asked,
        )
        await world.beat(node_id)
        now_ms = world.clock.now_ms()
        return await apply_run_reports(world.database, world.ids, node_id, [report], now_ms=now_ms, fault_budget=3)

    # Looking

    async def snapshot(self) -> Snapshot:
        context = self.world.control.context
        async with self.world.database.transaction() as connection:
            await freeze(connection)
            return await read_snapshot(connection, self.world.clock.now_ms(), context.traits(), 600_000)

    async def orders(self) -> dict[str, RunOrder]:
        """What the agent of their node is told, by job."""
        async with self.world.database.transaction() as connection:
            return {order.job_id: order for order in await orders(connection, self.node_id)}

    async def states(self) -> tuple[str, ...]:
        """Of the two jobs."""
        return tuple([(await self.world.job(side.job_id)).state for side in self.sides])

    async def run_states(self) -> tuple[str, ...]:
        return tuple([(await side.run(side.source)).state for side in self.sides])

    async def merge_state(self) -> str:
        async with self.world.database.transaction() as connection:
            state = await connection.execute(select(merges.c.state).where(merges.c.id == self.merge_id))
            return str(state.scalar_one())
