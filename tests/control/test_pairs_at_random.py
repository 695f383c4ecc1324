"""Whatever agents, owners, deaths and decisions do to two jobs of one process, in any order: the money adds up, and
both come to an end."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.model.plan import Split
from app.db import tables as t
from app.db.engine import Database, make_engine
from app.db.tables import merges
from app.errors import Conflict
from app.services.jobs.resume_job import resume_job
from tests.conftest import CountingIds, ManualClock
from tests.control.moving import Moving
from tests.control.pairing import LIVE, Pair
from tests.control.world import World, make_settings
from tests.crashes.stage import empty

OVER = ("succeeded", "failed", "cancelled")
ROUNDS = 20
EXITS = st.sampled_from(
    [
        {"exit_code": 0},
        {"exit_code": 1},
        {"exit_code": 75, "saved_after_stop": True},
        {"exit_code": 75, "parted": "no better in two epochs"},
        {"signal": 9},
        {"environment_error": "no space left", "machine_fault": True},
    ]
)
WHO = st.sampled_from(["lead", "companion"])
TOKENS = st.integers(0, 1_000)
ACTIONS = st.one_of(
    st.tuples(st.just("train"), TOKENS, TOKENS),
    st.tuples(st.just("train"), TOKENS, TOKENS),
    st.tuples(st.just("exit"), WHO, EXITS),
    st.tuples(st.just("die"), EXITS),
    st.tuples(st.just("lose")),
    st.tuples(st.just("demote")),
    st.tuples(st.just("split")),
    st.tuples(st.just("owner"), WHO, st.sampled_from(["pause", "resume", "cancel", "cap"])),
    st.tuples(st.just("time"), st.sampled_from([1, 40, 400])),
    st.tuples(st.just("decide")),
    st.tuples(st.just("restart")),
)


class Chaos:
    """Plays actions, and looks at the rows after each."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.world = pair, pair.world
        self.epochs: Counter[str] = Counter()
        self.tokens = 0

    async def play(self, kind: str, *how: Any) -> None:
        self.world.clock.advance(ms=100)
        await getattr(self, kind)(*how)
        await self.check()

    async def placed(self) -> list[Moving]:
        """The sides that a live run holds; their `source` is that run."""
        state = {run.id: run.state for run in await self.world.rows(t.runs)}
        newest = {
            row.job_id: row.run_id for row in sorted(await self.world.rows(t.run_jobs), key=lambda row: row.epoch)
        }
        found = []
        for side in self.pair.sides:
            side.source = newest.get(side.job_id, "")
            if state.get(side.source) in LIVE:
                found.append(side)
        return found

    async def train(self, *tokens: int) -> None:
        """Both report; of what each has processed, more."""
        for side, more in zip(self.pair.sides, tokens, strict=True):
            self.tokens += more
            if side in await self.placed():
                await self.pair.says(side, "running", 5, tokens=self.tokens)

    async def exit(self, who: str, how: dict[str, Any]) -> None:
        side: Moving = getattr(self.pair, who)
        if side in await self.placed():
            await self.pair.says(side, "exited", 9, **how)

    async def die(self, how: dict[str, Any]) -> None:
        """The process ends, and with it both."""
        for side in await self.placed():
            await self.pair.says(side, "exited", 9, **how)
            await self.check()

    async def lose(self) -> None:
        for side in (await self.placed())[:1]:
            await side.loses((await side.place(side.source))[0])

    async def demote(self) -> None:
        for run in (await self.pair.snapshot()).runs[:1]:
            await self.pair.demote_run(run.run_id)

    async def split(self) -> None:
        (row,) = await self.world.rows(merges)
        versions = ((row.id, row.row_version),)
        await self.pair.enact(Split(row.lead_job_id, row.companion_job_id, row.id, "no better", versions))

    async def owner(self, who: str, wish: str) -> None:
        side: Moving = getattr(self.pair, who)
        try:
            if wish == "pause":
                await side.pause()
            elif wish == "cancel":
                await side.cancel()
            elif wish == "cap":
                await self.world.set_job(side.job_id, max_cost_micros=1)
                await self.world.meter()
                await self.world.set_job(side.job_id, max_cost_micros=None)
            else:
                async with self.world.database.transaction() as connection:
                    await resume_job(connection, self.world.project_id, side.job_id, now_ms=self.world.clock.now_ms())
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
        paid = Counter[str]()
        for line in await self.world.rows(t.ledger):
            assert line.amount_micros > 0
            paid[line.job_id or ""] += line.amount_micros
        for side in self.pair.sides:
            job = await self.world.job(side.job_id)
            assert job.epoch >= self.epochs[side.job_id]
            self.epochs[side.job_id] = job.epoch
            assert job.spent_micros == paid[side.job_id]
        nodes = {node.id: node for node in await self.world.rows(t.nodes)}
        assert sum(paid.values()) == sum(node.metered_micros for node in nodes.values())
        used = {row.node_id for row in await self.world.rows(t.allocations) if row.to_ms is None}
        for node_id, node in nodes.items():
            assert node_id not in used or node.idle_since_ms is None
            assert node_id in used or node.tier != "serverless" or node.state in ("terminating", "terminated", "failed")

    async def settle(self) -> None:
        """From now on everybody does what is wanted: both jobs end, and nothing is left."""
        for _ in range(ROUNDS):
            states = dict(zip(("lead", "companion"), await self.pair.states(), strict=True))
            if set(states.values()) <= set(OVER) and not self.world.cloud.alive():
                break
            for who, state in states.items():
                if state == "paused":
                    await self.owner(who, "resume")
            for side in await self.placed():
                run = await side.run(side.source)
                leaves = run.state == "stopping"
                if run.running_ms is None and not leaves:
                    await self.pair.says(side, "running", 9)
                else:
                    how = {"exit_code": 75, "saved_after_stop": True} if leaves else {"exit_code": 0}
                    await self.pair.says(side, "exited", 10, **how)
                await self.check()
            self.world.clock.advance(s=31)
            await self.decide()
            await self.world.check_heartbeats()
        assert set(await self.pair.states()) <= set(OVER), await self.pair.states()
        assert self.world.cloud.alive() == []
        assert await self.world.ledger_sum() == self.world.cloud.bill().micros
        assert [row.state for row in await self.world.rows(merges)] != ["open"]
        await self.check()


@pytest.mark.timeout(300)
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, min_size=5, max_size=12))
def test_no_order_of_events_breaks_a_pair(database_url: str, tmp_path: Path, actions: list[tuple[Any, ...]]) -> None:
    """Random reports, ends, losses, wishes and decisions: every promise holds after each, the bill adds up."""

    async def tell() -> None:
        database = Database(make_engine(database_url, pool_size=4, timeout_s=10))
        clock = ManualClock()
        try:
            await empty(database)
            world = World(database, make_settings(database_url), clock, CountingIds(clock))
            await world.open()
            pair = Pair(world, tmp_path)
            await pair.begin()
            chaos = Chaos(pair)
            for kind, *how in actions:
                await chaos.play(kind, *how)
            await chaos.settle()
        finally:
            await database.close()

    asyncio.run(tell())
