"""What may befall a move, in any order, and the end that it comes to all the same."""

from __future__ import annotations

from typing import Any

from app.db import tables as t
from app.errors import Conflict, Fenced, NotFound
from app.services.jobs.resume_job import resume_job
from tests.control.moving import Moving

_REFUSED = (Fenced, Conflict, NotFound)
_OVER = ("succeeded", "failed", "cancelled")
_ROUNDS = 40


class Chaos:
    """Plays actions, and looks at the rows after each."""

    def __init__(self, moving: Moving) -> None:
        self.moving, self.world = moving, moving.world
        self.newest = (0, -1)
        self.epoch = 0

    async def play(self, kind: str, *how: Any) -> None:
        self.world.clock.advance(ms=100)
        await getattr(self, kind)(*how)
        await self.check()

    async def run_ids(self) -> list[str]:
        return [row.run_id for row in await self.world.rows(t.run_jobs) if row.job_id == self.moving.job_id]

    async def who(self, name: str) -> str:
        """A run of the job: of its newest move, or any that may be long over."""
        runs = await self.run_ids()
        move = await self.moving.move()
        return str(
            {"source": move.source_run_id, "target": move.target_run_id, "first": runs[0], "last": runs[-1]}[name]
        )

    async def say(self, who: str, phase: str, step: int) -> None:
        await self.moving.says(await self.who(who), phase, step)

    async def exit(self, who: str, how: dict[str, Any], step: int) -> None:
        await self.moving.says(await self.who(who), "exited", step, **how)

    async def save(self, who: str, step: int, final: bool) -> None:
        run_id = await self.who(who)
        _, epoch = await self.moving.place(run_id)
        run, job = await self.moving.run(run_id), await self.world.job(self.moving.job_id)
        allowed = run.state != "ended" and epoch == job.epoch
        try:
            await self.moving.saves(run_id, step, final=final)
        except _REFUSED:
            assert not allowed, "a run that holds its job was refused"
        else:
            assert allowed, "a run without its job has written"

    async def behave(self, who: str) -> None:
        """The agent does what is wanted of it."""
        await self._behave(await self.who(who), finishes=False)

    async def _behave(self, run_id: str, *, finishes: bool) -> None:
        run = await self.moving.run(run_id)
        if run.state in ("assigned", "starting", "promoting"):
            await self.moving.says(run_id, "running")
        elif run.state == "standby":
            await self.moving.says(run_id, "prepared")
        elif run.state == "stopping":
            await self._leave(run_id)
        elif run.state == "running" and finishes:
            await self.moving.says(run_id, "exited", 99, exit_code=0)

    async def _leave(self, run_id: str) -> None:
        step = (await self.world.job(self.moving.job_id)).step
        try:
            await self.moving.saves(run_id, step, final=True)
        except _REFUSED:
            await self.moving.says(run_id, "exited", signal=9)
        else:
            await self.moving.says(run_id, "exited", step, exit_code=75, saved_after_stop=True)

    async def lose(self, who: str) -> None:
        node_id, _ = await self.moving.place(await self.who(who))
        await self.moving.loses(node_id)

    async def migrate(self) -> None:
        """To any free node; a second one of the same job is dropped."""
        moving = self.moving
        free = [node.id for node in await self.world.rows(t.nodes) if node.state == "ready" and node.idle_since_ms]
        running = [run.id for run in await moving.live_runs() if run.state == "running"]
        if free and running:
            moving.source, moving.target_node = running[-1], free[-1]
            await moving.enact(await moving.migrate())

    async def owner(self, wish: str) -> None:
        world, job_id = self.world, self.moving.job_id
        try:
            if wish == "pause":
                await self.moving.pause()
            elif wish == "cancel":
                await self.moving.cancel()
            elif wish == "cap":
                await world.set_job(job_id, max_cost_micros=1)
                await world.meter()
                await world.set_job(job_id, max_cost_micros=None)
            else:
                async with world.database.transaction() as connection:
                    await resume_job(connection, world.project_id, job_id, now_ms=world.clock.now_ms())
        except Conflict:
            return  # it is over, or not paused

    async def time(self, seconds: int) -> None:
        self.world.clock.advance(s=seconds)
        await self._boot_and_beat()
        await self.world.check_heartbeats()
        await self.world.meter()

    async def decide(self) -> None:
        await self.world.decide()
        await self.world.work()
        await self._boot_and_beat()

    async def restart(self) -> None:
        await self.world.restart()

    async def _boot_and_beat(self) -> None:
        for node in await self.world.rows(t.nodes):
            if node.state in ("requested", "booting", "unknown") and self.world.cloud.of_label(node.id):
                await self.world.boot(node.id)
            elif node.state in ("ready", "unreachable"):
                await self.world.beat(node.id)

    async def check(self) -> None:
        await self.world.check_invariants()
        job = await self.world.job(self.moving.job_id)
        assert job.epoch >= self.epoch
        self.epoch = job.epoch
        if job.checkpoint_id is not None:
            saved = await self.world._row(t.checkpoints, job.checkpoint_id)
            assert (saved.epoch, saved.step) >= self.newest, "an older checkpoint took the place of a newer one"
            self.newest = (saved.epoch, saved.step)
        started = [run for run in await self.moving.live_runs() if run.running_ms is not None]
        epochs = [(await self.moving.place(run.id))[1] for run in started if run.state == "running"]
        assert epochs in ([], [job.epoch]), "code runs that does not hold the job"

    async def settle(self) -> None:
        """From now on everybody does what is wanted: the job ends, and nothing is left."""
        for _ in range(_ROUNDS):
            job = await self.world.job(self.moving.job_id)
            if job.state == "paused":
                await self.owner("resume")
            if job.state not in _OVER:
                for run in await self.moving.live_runs():
                    await self._behave(run.id, finishes=True)
                    await self.check()
            await self.decide()
            self.world.clock.advance(s=31)
            await self._boot_and_beat()
            await self.world.check_heartbeats()
            if job.state in _OVER and not self.world.cloud.alive():
                break
        assert (await self.world.job(self.moving.job_id)).state in _OVER, await self.moving.states()
        assert self.world.cloud.alive() == []
        assert {run.state for run in await self.world.rows(t.runs)} == {"ended"}
        assert {move.state for move in await self.world.rows(t.moves)} <= {"done", "abandoned"}
        assert await self.world.ledger_sum() == self.world.cloud.bill().micros
        await self.check()
