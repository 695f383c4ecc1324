"""Whatever agents say, in whatever order: states stay legal, epochs are held once, steps never go back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from app.core.lifecycle import JOB_TRANSITIONS
from app.core.model.job import JobState
from app.core.model.run import RunState, StopMode
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.db.tables import checkpoints, job_events, jobs, run_jobs, runs
from app.services.nodes.lose_node import lose_node
from app.storage.directory import DirectoryStore
from tests.conftest import CountingIds, ManualClock
from tests.services.agents.conftest import Place, Stage, open_stage

EXITS = st.sampled_from(
    [
        {"exit_code": 0},
        {"exit_code": 0, "saved_after_stop": True},
        {"exit_code": 1},
        {"signal": 9},
        {},
        {"environment_error": "no"},
    ]
)
STEPS = st.integers(0, 9)
WHO = st.sampled_from([-1, -1, -1, -2, 0])  # mostly the newest run's agent, sometimes a zombie
ACTIONS = st.one_of(
    st.tuples(st.just("report"), WHO, st.sampled_from(["preparing", "running", "running", "stopping"]), STEPS),
    st.tuples(st.just("exit"), WHO, EXITS, STEPS),
    st.tuples(st.just("save"), WHO, STEPS),
    st.tuples(st.just("open"), WHO, STEPS),
    st.tuples(st.just("metrics"), WHO, STEPS),
    st.tuples(st.just("stop"), st.sampled_from(StopMode)),
    st.tuples(st.just("lose")),
    st.tuples(st.just("next")),
)


@dataclass
class Seen:
    """What the last look at the rows showed."""

    state: JobState = JobState.STARTING
    epoch: int = 1
    step: int = 0
    newest: tuple[int, int] = (0, -1)
    ended: set[str] = field(default_factory=set)


class Story:
    """Plays actions against the protocol and looks at the rows after each."""

    def __init__(self, stage: Stage, first: Place) -> None:
        self.stage = stage
        self.runs = [first]
        self.seen = Seen()

    async def play(self, kind: str, *how: Any) -> None:
        self.stage.clock.advance(s=1)
        await getattr(self, kind)(*how)
        await self.check()

    def who(self, index: int) -> Place:
        return self.runs[max(index, -len(self.runs))]

    async def report(self, who: int, phase: str, step: int) -> None:
        place = self.who(who)
        assert (await self.stage.sync(place, place.report(phase, step=step))).status_code in (200, 401)

    async def exit(self, who: int, exit_: dict[str, Any], step: int) -> None:
        place = self.who(who)
        answer = await self.stage.sync(place, place.report("exited", step=step, exit=exit_))
        assert answer.status_code in (200, 401)

    async def save(self, who: int, step: int) -> None:
        if await self.may_write(self.who(who)):
            await self.stage.save(self.who(who), step, ("model", b"%d" % step))
        else:
            await self.open(who, step)

    async def open(self, who: int, step: int) -> None:
        place = self.who(who)
        allowed = await self.may_write(place)
        files = [{"path": "lost", "sha256": "0" * 64, "size_bytes": 1}]
        answer = await self.stage.post(place, "/checkpoints", {**place.writer(), "step": step, "files": files})
        assert (answer.status_code == 200) == allowed
        if allowed:
            path = f"/checkpoints/{answer.json()['checkpoint_id']}/commit"
            assert (await self.stage.post(place, path, place.job())).status_code == 409

    async def metrics(self, who: int, step: int) -> None:
        place = self.who(who)
        allowed = await self.may_write(place)
        body = {**place.writer(), "points": [{"step": step, "at_ms": 1, "values": {"loss": 1.0}}]}
        assert ((await self.stage.post(place, "/metrics", body)).status_code == 204) == allowed

    async def stop(self, mode: StopMode) -> None:
        async with self.stage.database.transaction() as connection:
            live = runs.c.state.in_([RunState.ASSIGNED, RunState.STARTING, RunState.RUNNING])
            values = {"state": RunState.STOPPING, "stop_mode": mode}
            stopped = await connection.execute(
                update(runs).where(runs.c.id == self.runs[-1].run_id, live).values(values)
            )
            if stopped.rowcount and mode is StopMode.CHECKPOINT:
                running = update(jobs).where(jobs.c.id == self.runs[0].job_id, jobs.c.state == JobState.RUNNING)
                await connection.execute(running.values(state=JobState.CHECKPOINTING))

    async def lose(self) -> None:
        stage, node_id = self.stage, self.runs[-1].node_id
        async with stage.database.transaction() as connection:
            await lose_node(connection, stage.ids, node_id, "silent", now_ms=stage.clock.ms, fault_budget=3)

    async def next(self) -> None:
        if self.seen.state is not JobState.WAITING:
            return
        elsewhere = await self.stage.place()
        moved = Place(self.runs[0].project_id, self.runs[0].job_id, elsewhere.node_id, "", elsewhere.token)
        self.runs.append(await self.stage.next_run(moved))

    async def may_write(self, place: Place) -> bool:
        (run,) = await self.stage.rows(runs, id=place.run_id)
        (job,) = await self.stage.rows(jobs, id=place.job_id)
        let_in = (await self.stage.sync(place)).status_code == 200
        return let_in and run.state != RunState.ENDED and job.epoch == place.epoch

    async def check(self) -> None:
        stage, seen, job_id = self.stage, self.seen, self.runs[0].job_id
        job = await stage.row(jobs, job_id)
        state = JobState(job.state)
        assert state in reachable(seen.state), f"{seen.state} -> {state}"
        assert job.epoch >= seen.epoch
        if job.epoch == seen.epoch and seen.state is JobState.RUNNING:
            assert job.step >= seen.step
        newest = (0, -1)
        if job.checkpoint_id is not None:
            checkpoint = await stage.row(checkpoints, job.checkpoint_id)
            assert (checkpoint.state, checkpoint.step) == ("committed", job.checkpoint_step)
            newest = (checkpoint.epoch, checkpoint.step)
        assert newest >= seen.newest
        held = {row.run_id: row.epoch for row in await stage.rows(run_jobs, job_id=job_id)}
        live = [row.id for row in await stage.rows(runs) if row.id in held and row.state != RunState.ENDED]
        assert len(live) <= 1
        assert all(held[run_id] == job.epoch for run_id in live)
        assert not (live and state in (JobState.WAITING, JobState.SUCCEEDED, JobState.FAILED))
        open_ones = await stage.rows(checkpoints, job_id=job_id, state="open")
        assert {row.run_id for row in open_ones} <= set(live)
        assert not seen.ended & set(live), "an ended run came back"
        positions = [row.position for row in await stage.rows(job_events, job_id=job_id)]
        assert positions == list(range(1, len(positions) + 1))
        self.seen = Seen(state, job.epoch, job.step, newest, set(held) - set(live))


def reachable(state: JobState) -> set[JobState]:
    """All states that legal passages lead to, and the state itself."""
    found, todo = {state}, [state]
    while todo:
        new = JOB_TRANSITIONS[todo.pop()] - found
        found |= new
        todo += new
    return found


@pytest.mark.timeout(300)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, min_size=4, max_size=12))
def test_no_order_of_reports_breaks_an_invariant(
    database_url: str, tmp_path: Path, clock: ManualClock, ids: CountingIds, actions: list[tuple[Any, ...]]
) -> None:
    """Random reports, saves, stops, losses and zombies: the rows keep every promise after each of them."""

    async def tell() -> None:
        database = Database(make_engine(database_url, pool_size=2, timeout_s=10))
        store = DirectoryStore(tmp_path / "objects", "http://127.0.0.1:1", "k" * 32, max_object_bytes=1024, clock=clock)
        listener = Listener(database_url, timeout_s=10)  # not started: nothing here waits for news
        try:
            async with open_stage(database, database_url, listener, store, clock, ids) as stage:
                story = Story(stage, await stage.place())
                for kind, *how in actions:
                    await story.play(kind, *how)
        finally:
            await database.close()

    asyncio.run(tell())
