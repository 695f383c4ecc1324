"""All that survives a crash: the database, the company, the objects, the agents, the user; and the end of a story."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import select, text

from app.db import tables as t
from app.db.engine import Database, make_engine
from app.db.nodes.lifecycle import CREATE_CALLED
from app.settings import Settings
from app.storage.directory import DirectoryStore
from tests.conftest import CountingIds, ManualClock
from tests.control.fake_provider import FakeProvider
from tests.control.invariants import breaches
from tests.crashes.agent import Agent, Program
from tests.crashes.process import Crashed, Lines, Process
from tests.crashes.server import Server
from tests.seeds import seed_app, seed_project

T = TypeVar("T")
ROUND_S = 5
MOST_ROUNDS = 60
FINAL = ("succeeded", "failed", "cancelled")


class Stage:
    """`lifetimes`: after how many steps each process dies, one after the other; the process after the last lives on.

    `impatience`: no process dies by that; instead every call is killed at step `first_death`, made again of the next
    process and killed `impatience` steps later, and so on until it gets through.
    """

    def __init__(self, database_url: str, observer: Database, lines: Lines, folder: Path) -> None:
        self.database = observer
        self.clock = ManualClock()
        self.ids = CountingIds(self.clock)
        self.cloud = FakeProvider(self.clock)
        self.objects = DirectoryStore(folder, "http://127.0.0.1:1", "k" * 40, max_object_bytes=2**20, clock=self.clock)
        self.settings = Settings(
            database_url=database_url,  # type: ignore[arg-type]  # pydantic makes the secret of the text
            objects_signing_key="k" * 40,  # type: ignore[arg-type]  # pydantic makes the secret of the text
            secret_key="s" * 40,  # type: ignore[arg-type]  # pydantic makes the secret of the text
            policy="fixed-threshold",
            serverless_budget_s=2 * ROUND_S,
            operation_timeout_s=30,
            operation_lease_s=600,
            leader_lease_s=600,
            unreachable_after_s=2 * ROUND_S,
            lost_after_s=2 * ROUND_S,
        )
        self.program = Program()
        self.agents: dict[str, Agent] = {}
        self.lifetimes: list[int] = []
        self.impatience: int | None = None
        self.first_death = 1
        self.witness: Callable[[int], Awaitable[None]] | None = None
        self.before_each: Callable[[], Awaitable[None]] = _nothing  # before each turn of an agent, and each chore
        self.deaths: list[str] = []
        self.codes_started = 0
        self._lines = lines

    async def open(self) -> None:
        async with self.database.transaction() as connection:
            self.project_id = await seed_project(connection)
            self.app = await seed_app(connection, self.project_id)
        await self._new_process()

    async def close(self) -> None:
        """The end of the last process: its connections are given back."""
        await self.server.database.close()

    # The server, life by life

    async def call(self, act: Callable[[Server], Coroutine[Any, Any, T]]) -> T:
        """What the server answers. Raises Crashed when it dies before that; another one runs already then."""
        if self.impatience is None:
            return await self._call(act)
        lifetime = self.first_death
        while True:
            self.process.dies_after = self.process.steps + lifetime
            try:
                answer = await self._call(act)
            except Crashed:
                lifetime += self.impatience
                continue
            self.process.dies_after = None
            return answer

    async def _call(self, act: Callable[[Server], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self.process.run(act(self.server))
        except Crashed:
            await self._bury()
            await self._new_process()
            raise

    async def _new_process(self) -> None:
        while True:
            lifetime = self.lifetimes.pop(0) if self.lifetimes else None
            self.process = Process(self._lines, dies_after=lifetime, witness=self.witness)
            self.server = Server(self._lines, self.cloud, self.objects, self.settings, self.clock, self.ids)
            try:
                await self.process.run(self.server.begin())
            except Crashed:
                await self._bury()
            else:
                return

    async def _bury(self) -> None:
        """The database has noticed that the process is gone, and time has passed: its leases have run out."""
        self.deaths.append(f"at step {self.process.steps} in {self.process.died_in}")
        await self.server.database.close()  # clears away the ends of the cut connections: nothing goes over them
        backends = self.process.backends
        async with asyncio.timeout(30):
            while await self._value("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(:pids)", pids=backends):
                await asyncio.sleep(0.001)
        async with self.database.transaction() as connection:
            await connection.execute(text("UPDATE leader_leases SET expires_at = clock_timestamp()"))
            await connection.execute(
                text("UPDATE provider_operations SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL")
            )

    # Time passes

    async def round(self, user: Callable[[Stage], Awaitable[None]]) -> None:
        """Everybody has a turn; who finds the server dead goes on in the next round."""
        await self._spared(user(self))
        await self._machines_start()
        for node_id in list(self.agents):
            await self.before_each()
            agent = self.agents.get(node_id)
            if agent is not None:
                await self._spared(agent.turn())
        if not await self.rows(t.offers):
            await self._spared(self.call(Server.refresh_offers))
        for chore in (Server.decide, Server.work, Server.check_heartbeats, Server.sweep, Server.meter):
            await self.before_each()
            await self._spared(self.call(chore))
        self.clock.advance(s=ROUND_S)

    async def _spared(self, turn: Awaitable[None]) -> None:
        try:
            await turn
        except Crashed:
            return

    async def _machines_start(self) -> None:
        """A machine's agent lives as long as the machine."""
        alive = {machine.label for machine in self.cloud.alive()}
        self.agents = {node_id: agent for node_id, agent in self.agents.items() if node_id in alive}
        for label in sorted(label for label in alive if label is not None and label not in self.agents):
            (rented,) = (one for one in self.cloud.of_label(label) if one.machine in self.cloud.alive())
            self.agents[label] = Agent(self, label, rented.join_token, rented.nonce)

    def code_starts(self, job_id: str) -> None:
        """Called when a machine starts the job's code."""
        self.codes_started += 1
        alive = {machine.label for machine in self.cloud.alive()}
        others = [node_id for node_id, agent in self.agents.items() if node_id in alive and agent.runs_code_of(job_id)]
        assert not others, f"{job_id} runs already, on {others}"

    # Looking, from outside of any process

    async def rows(self, table: Any) -> list[Any]:
        async with self.database.transaction() as connection:
            return list(await connection.execute(select(table).order_by(*table.primary_key.columns)))

    async def job(self) -> Any:
        """The one job, or None before there is one."""
        jobs = await self.rows(t.jobs)
        assert len(jobs) <= 1, "it was submitted twice"
        return jobs[0] if jobs else None

    async def is_over(self) -> bool:
        job = await self.job()
        if job is None or job.state not in FINAL:
            return False
        return not self.cloud.alive() and all(node.meter_closed for node in await self.rows(t.nodes))

    async def check_at_any_time(self) -> None:
        assert await breaches(self.rows, self.cloud) == []

    async def check_the_end(self) -> None:
        """Every job ended once, nothing is left open, and what was booked is what is billed: in all and by node."""
        await self.check_at_any_time()
        job = await self.job()
        ends = [event.kind for event in await self.rows(t.job_events) if event.kind in FINAL]
        assert ends == [job.state]
        assert {run.state for run in await self.rows(t.runs)} <= {"ended"}
        assert {node.state for node in await self.rows(t.nodes)} <= {"terminated", "failed"}
        assert {operation.state for operation in await self.rows(t.provider_operations)} <= {"done", "failed"}
        assert all(row.to_ms is not None for row in await self.rows(t.allocations))
        booked: Counter[str] = Counter()
        of_the_job = 0
        for line in await self.rows(t.ledger):
            booked[line.node_id] += line.amount_micros
            of_the_job += line.amount_micros if line.job_id == job.id else 0
        nodes = [node.id for node in await self.rows(t.nodes)]
        assert {node: booked[node] for node in nodes} == {node: self.cloud.bill(node).micros for node in nodes}
        assert booked.total() == self.cloud.bill().micros
        assert of_the_job == job.spent_micros  # the rest was nobody's: a machine idled

    async def summary(self) -> dict[str, Any]:
        """What must come out the same, whoever died on the way."""
        job = await self.job()
        columns = ("state", "end_reason", "step", "epoch", "moves", "faults", "pause_reason")
        stays = [(run.tier, run.end_reason) for run in await self.rows(t.runs)]
        machines = {
            label: len(self.cloud.of_label(label)) for label in {r.machine.label for r in self.cloud.rented.values()}
        }
        announced = Counter(event.node_id for event in await self.rows(t.node_events) if event.kind == CREATE_CALLED)
        return {
            **{name: getattr(job, name) for name in columns},
            "repeated_creates": announced.total() - len(announced),
            "stays": stays,
            "prepared_moves": sum(move.state == "done" for move in await self.rows(t.moves)),
            "starts": self.codes_started,
            "sizes": [list(row.gpu_indices) for row in await self.rows(t.allocations)],
            "most_machines_of_a_node": max(machines.values(), default=0),
        }

    async def horizon(self) -> tuple[int, int, int]:
        """Moves with every transaction that writes, and with every machine that begins or ends."""
        written = await self._value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return written, len(self.cloud.rented), len(self.cloud.alive())

    async def _value(self, query: str, **values: Any) -> Any:
        async with self.database.statement() as connection:
            return (await connection.execute(text(query), values)).scalar_one()


@asynccontextmanager
async def lines_to(database_url: str) -> AsyncIterator[Lines]:
    """The first connection of an engine takes more steps than the others: it is made here, so that stories repeat."""
    lines = Lines(make_engine(database_url, pool_size=4, timeout_s=30))
    try:
        async with lines.engine.connect():
            pass
        await lines.engine.dispose()
        yield lines
    finally:
        lines.cut()
        await lines.engine.dispose()


async def _nothing() -> None:
    return


async def empty(observer: Database) -> None:
    """Every story begins with nothing in the database but which installation it is of, as a migration leaves it."""
    names = ", ".join(table.name for table in t.metadata.sorted_tables if table is not t.installations)
    async with observer.transaction() as connection:
        await connection.execute(text(f"TRUNCATE {names} RESTART IDENTITY CASCADE"))
