"""A whole small world for one test: a real database, a company in memory, simulated agents, and a control process
that a test drives step by step."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select, text, update

from allpass.wire.agent import ExitReport, JoinRequest, RunReport
from app.control.budgets import hold_to_budgets
from app.control.caps import hold_to_caps
from app.control.lifetimes import leave_in_time
from app.control.limits import hold_to_limits
from app.control.meter import read_meters
from app.control.moves import look_after_moves
from app.control.prices import refresh_offers
from app.control.service import ControlService
from app.control.sweep import sweep
from app.core.model.ids import marked
from app.core.model.run import RunState
from app.core.model.snapshot import Snapshot
from app.db import tables as t
from app.db.access.installation import installation_id
from app.db.decisions.snapshots import Memory, freeze, read_snapshot
from app.db.engine import Database
from app.db.listen import Listener
from app.db.nodes.agents import set_heartbeat, welcome_node
from app.db.runs.live_runs import live_runs_of_node
from app.services.kit.node_tokens import TokenMint
from app.services.nodes.authenticate_node import authenticate_node
from app.services.nodes.join_node import join_node
from app.services.runs.apply_run_reports import apply_run_reports
from app.settings import Settings
from tests.conftest import CountingIds, ManualClock
from tests.control.fake_provider import FakeProvider, RentedMachine
from tests.control.invariants import breaches
from tests.seeds import seed_app, seed_job, seed_project

_FINAL = ("succeeded", "failed", "cancelled")


def make_settings(database_url: str, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "database_url": database_url,
        "objects_signing_key": "k" * 40,
        "secret_key": "s" * 40,
        "policy": "fixed-threshold",
        "serverless_budget_s": 300,
        "operation_timeout_s": 2,
        "leader_lease_s": 600,  # of real time, and nothing renews it: no test is to outlast it
    }
    return Settings(**{**given, **changes})


class World:
    """`control` is rebuilt by `restart`, as after a crash; everything else survives."""

    def __init__(self, database: Database, settings: Settings, clock: ManualClock, ids: CountingIds) -> None:
        self.database = database
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self.saves_when_asked = True  # what agents tell of code that runs
        self.cloud = FakeProvider(clock)
        self.other_clouds: list[FakeProvider] = []
        self.seen_by_control = database  # crash tests put one that breaks in its place
        self.memory = Memory()  # of what every check has seen before
        self.control = self.new_control()

    def new_control(self) -> ControlService:
        return ControlService(
            database=self.seen_by_control,
            listener=Listener(self.settings.database_url.get_secret_value(), timeout_s=30),
            providers={cloud.name: cloud for cloud in (self.cloud, *self.other_clouds)},
            settings=self.settings,
            clock=self.clock,
            ids=self.ids,
        )

    async def open(self) -> None:
        """A project with an app, fresh offers, and a leader."""
        async with self.database.transaction() as connection:
            self.project_id = await seed_project(connection)
            self.app = await seed_app(connection, self.project_id)
        assert await self.control.context.leader.step()
        await refresh_offers(self.control.context)

    async def restart(self) -> None:
        """The control process died; its leases have run out, and another one takes over."""
        async with self.database.transaction() as connection:
            await connection.execute(text("UPDATE leader_leases SET expires_at = clock_timestamp()"))
            await connection.execute(
                text("UPDATE provider_operations SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL")
            )
        self.control = self.new_control()
        assert await self.control.context.leader.step()

    async def submit(self, **changes: Any) -> str:
        now_ms = self.clock.now_ms()
        row = {"id": self.ids.new("job"), "submitted_ms": now_ms, "deadline_ms": now_ms + 86_400_000, **changes}
        async with self.database.transaction() as connection:
            return await seed_job(connection, self.project_id, self.app, **row)

    # The control process, step by step

    async def decide(self) -> Any:
        """One decision on fresh offers."""
        await refresh_offers(self.control.context)
        return await self.control.loop.tick("test")

    async def work(self, batches: int = 20) -> None:
        """Carry out what is due, until nothing is."""
        for _ in range(batches):
            if not await self.control.workers.work_once():
                return

    async def sweep(self) -> None:
        await sweep(self.control.context)

    async def leave_in_time(self) -> int:
        return await leave_in_time(self.control.context)

    async def meter(self) -> None:
        await read_meters(self.control.context)
        await hold_to_caps(self.control.context)
        await hold_to_limits(self.control.context)
        await hold_to_budgets(self.control.context)

    async def check_heartbeats(self) -> None:
        await self.control.heartbeats.check()
        await look_after_moves(self.control.context)

    # Agents

    async def boot(self, node_id: str) -> None:
        """The machine's agent joins with the token it was started with, and calls home."""
        machines = [rented for cloud in (self.cloud, *self.other_clouds) for rented in cloud.of_label(node_id)]
        assert machines, f"no machine carries the label {node_id}"
        token = await self.join(machines[0])
        node = await authenticate_node(self.database, f"Bearer {token}")
        assert node.node_id == node_id
        async with self.database.transaction() as connection:
            await welcome_node(connection, node, now_ms=self.clock.now_ms())
        await self.beat(node_id)

    async def join(self, rented: RentedMachine) -> str:
        """The agent of this machine asks to be let in; returns the node's token. Raises what the server answers."""
        request = JoinRequest(agent_version="1", nonce=rented.nonce)
        shown = f"Bearer {rented.join_token}"
        now_ms = self.clock.now_ms()
        reply = await join_node(self.database, TokenMint.of(self.settings), shown, request, now_ms=now_ms)
        return reply.node_token

    async def beat(self, node_id: str) -> None:
        async with self.database.transaction() as connection:
            await set_heartbeat(connection, node_id, {}, now_ms=self.clock.now_ms())

    async def report(self, node_id: str, phase: str, *, step: int = 0, **exit_: Any) -> bool:
        """The agent tells the phase of the one run on its node."""
        await self.beat(node_id)
        async with self.database.transaction() as connection:
            (run_id,) = await live_runs_of_node(connection, node_id)
            run = (await connection.execute(select(t.run_jobs).where(t.run_jobs.c.run_id == run_id))).one()
        report = RunReport(
            run_id=run_id,
            job_id=run.job_id,
            epoch=run.epoch,
            phase=phase,  # any word is tried
            step=step,
            exit=ExitReport(**exit_) if phase == "exited" else None,
            saves=self.saves_when_asked,
        )
        now_ms = self.clock.now_ms()
        return await apply_run_reports(self.database, self.ids, node_id, [report], now_ms=now_ms, fault_budget=3)

    async def run_on_serverless(self) -> tuple[str, str]:
        """A submitted job whose code runs; returns the ids of job and node."""
        job_id = await self.submit()
        await self.decide()
        await self.work()
        node_id = await self.node_of(job_id)
        await self.boot(node_id)
        await self.report(node_id, "running")
        return job_id, node_id

    async def own_label(self) -> str:
        """The label of a machine that this installation has rented, and that no row knows."""
        async with self.database.transaction() as connection:
            return marked(self.ids.new("node"), await installation_id(connection))

    # Looking

    async def job(self, job_id: str) -> Any:
        return await self._row(t.jobs, job_id)

    async def node(self, node_id: str) -> Any:
        return await self._row(t.nodes, node_id)

    async def rows(self, table: Any) -> list[Any]:
        async with self.database.transaction() as connection:
            return list(await connection.execute(select(table).order_by(*table.primary_key.columns)))

    async def newest_node(self) -> Any:
        return (await self.rows(t.nodes))[-1]

    async def node_of(self, job_id: str) -> str:
        """The node that holds the job's live run."""
        async with self.database.transaction() as connection:
            rows = await connection.execute(
                select(t.allocations.c.node_id)
                .join(t.runs, t.runs.c.id == t.allocations.c.run_id)
                .join(t.run_jobs, t.run_jobs.c.run_id == t.runs.c.id)
                .join(t.jobs, (t.jobs.c.id == t.run_jobs.c.job_id) & (t.jobs.c.epoch == t.run_jobs.c.epoch))
                .where(t.run_jobs.c.job_id == job_id, t.runs.c.state != RunState.ENDED)
            )
            node_id: str = rows.scalar_one()
            return node_id

    async def events(self, job_id: str) -> list[str]:
        return [row.kind for row in await self.rows(t.job_events) if row.job_id == job_id]

    async def ledger_sum(self) -> int:
        async with self.database.transaction() as connection:
            total = await connection.execute(select(func.coalesce(func.sum(t.ledger.c.amount_micros), 0)))
            return int(total.scalar_one())

    async def set_job(self, job_id: str, **columns: Any) -> None:
        async with self.database.transaction() as connection:
            await connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(**columns))

    async def check_invariants(self) -> None:
        """What must hold at any moment, whatever has happened."""
        assert await breaches(self.rows, self.cloud) == []
        assert await self.see(self.memory) == await self.see(Memory())

    async def see(self, memory: Memory) -> Snapshot:
        """What a decision would see now, of those who remember this much."""
        now_ms, merging = self.clock.now_ms(), bool(self.settings.merging)
        async with self.database.transaction() as connection:
            await freeze(connection)
            traits = self.control.context.traits()
            return await read_snapshot(connection, now_ms, traits, 300_000, merging=merging, memory=memory)

    async def _row(self, table: Any, row_id: str) -> Any:
        async with self.database.transaction() as connection:
            return (await connection.execute(select(table).where(table.c.id == row_id))).one()
