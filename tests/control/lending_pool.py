"""A world whose only machines are those of a pool's hosts, which are played: they start and end what they are told."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import select, update

from allpass.wire.agent import ExitReport, JoinRequest, RunReport
from allpass.wire.hosts import HostFacts, HostJoinRequest, HostSyncRequest
from app.core.model.job import PriorityClass, Resources
from app.core.model.money import Money
from app.core.model.pool import Pool
from app.db import tables as t
from app.db.engine import make_engine
from app.db.nodes.agents import welcome_node
from app.db.pools.pools import PoolRow, add_pool
from app.db.runs.live_runs import live_runs_of_node
from app.services.kit.node_tokens import TokenMint
from app.services.kit.seal import Sealer
from app.services.nodes.authenticate_node import authenticate_node
from app.services.nodes.join_node import join_node
from app.services.pools.join_host import join_host, make_pool_token
from app.services.pools.own_hosts import DatabaseHosts
from app.services.pools.sync_host import orders_of_host, report_host
from app.services.runs.apply_run_reports import apply_run_reports
from app.services.standby.begin_standby import begin_standby
from app.services.standby.follow_standby import end_standby
from providers.joined.adapter import JoinedHosts
from tests.control.dying import DyingDatabase, KilledError
from tests.control.world import World
from tests.seeds import GIB, resources_json, seed_app, seed_job, seed_project

HOUR_MS = 3_600_000
PRICE = Money(3_600_000)  # of a GPU and hour: a thousand micro-dollars a second
SPOT = {"priority_class": PriorityClass.SPOT}


class LendingPool:
    """Pool `lab` with one host, or more. `slow`: machines that are asked to end go on for now."""

    def __init__(self, world: World, gpus: int = 2, hosts: int = 1) -> None:
        self.world = world
        self._gpus, self._number = gpus, hosts
        self.slow = False
        self._sealer = Sealer.of(world.settings)
        self._hosts: dict[str, str] = {}  # their tokens
        self._machines: dict[str, dict[str, str]] = {}  # of each host
        self._nodes: dict[str, str] = {}  # by machine that has joined

    async def open(self, **pool: Any) -> None:
        world = self.world
        hosts = DatabaseHosts(world.database, self._sealer, world.clock, world.ids)
        world.cloud.on_offer = []
        world.other_clouds = [JoinedHosts(hosts, startup_deadline_ms=60_000)]  # type: ignore[list-item]
        await world.restart()
        now_ms = world.clock.now_ms()
        made = Pool("lab", **({"price": PRICE} | pool))
        async with world.database.transaction() as connection:
            await add_pool(connection, PoolRow(made, "", {}, now_ms))
            until_ms = now_ms + HOUR_MS
            token = await make_pool_token(connection, "lab", joins=self._number, expires_ms=until_ms, now_ms=now_ms)
        for number in range(self._number):
            body = {"boot_id": "1", "facts": self._facts(), "name": f"host{number}", "nonce": f"{number:064x}"}
            asked = HostJoinRequest.model_validate(body)
            async with world.database.transaction() as connection:
                joined = await join_host(connection, world.settings, world.ids, f"Bearer {token}", asked, now_ms=now_ms)
            self._hosts[joined.host_id] = f"Bearer {joined.host_token}"
        self.host_id = next(iter(self._hosts))

    def _facts(self) -> dict[str, Any]:
        gpus = [{"index": one, "name": "A100", "memory_bytes": 40 * GIB} for one in range(self._gpus)]
        return HostFacts.model_validate({"cpus": 32, "memory_bytes": 256 * GIB, "gpus": gpus}).model_dump()

    async def other_project(self) -> tuple[str, tuple[str, str]]:
        async with self.world.database.transaction() as connection:
            project_id = await seed_project(connection)
            return project_id, await seed_app(connection, project_id)

    async def submit(self, gpus: int = 1, project: tuple[str, Any] | None = None, **columns: Any) -> str:
        world = self.world
        project_id, app = project or (world.project_id, world.app)
        now_ms = world.clock.now_ms()
        row = {"id": world.ids.new("job"), "submitted_ms": now_ms, "deadline_ms": now_ms + 24 * HOUR_MS, "saves_ms": 1}
        row |= {"resources": resources_json(Resources(gpus, gpus)), **columns}
        async with world.database.transaction() as connection:
            return await seed_job(connection, project_id, app, **row)

    async def turn(self, times: int = 6) -> None:
        """Decisions, calls, and what the host does of it."""
        for _ in range(times):
            await self.beat()
            await self.world.decide()
            await self.world.work()
            await self.host_works()

    async def beat(self) -> None:
        for row in await self.world.rows(t.nodes):
            if row.state == "ready":
                await self.world.beat(row.id)

    async def host_works(self) -> None:
        """The hosts say what is and hear what should be; agents of new machines join."""
        for _ in range(2):
            for host_id, bearer in self._hosts.items():
                await self._works(host_id, bearer, self._machines.setdefault(host_id, {}))

    async def _works(self, host_id: str, bearer: str, machines: dict[str, str]) -> None:
        has = [{"id": one, "state": state} for one, state in machines.items()]
        body = {"boot_id": "1", "facts": self._facts(), "machines": has}
        said, now_ms, world = HostSyncRequest.model_validate(body), self.world.clock.now_ms(), self.world
        await report_host(world.database, world.ids, bearer, said, fault_budget=3, now_ms=now_ms)
        async with world.database.transaction() as connection:
            told = await orders_of_host(connection, self._sealer, host_id, now_ms=now_ms)
        for order in told.machines:
            if order.ends and not self.slow:
                machines[order.id] = "ended"
            elif order.environment is not None and order.id not in machines:
                machines[order.id] = "running"
                await self._join(order.id, order.node_id, order.environment["ALLPASS_JOIN_TOKEN"])
        for gone in machines.keys() - {order.id for order in told.machines}:
            del machines[gone]

    async def _join(self, machine_id: str, node_id: str, token: str) -> None:
        world, now_ms = self.world, self.world.clock.now_ms()
        request = JoinRequest(agent_version="1", nonce=hashlib.sha256(machine_id.encode()).hexdigest())
        reply = await join_node(world.database, TokenMint.of(world.settings), f"Bearer {token}", request, now_ms=now_ms)
        node = await authenticate_node(world.database, f"Bearer {reply.node_token}")
        async with world.database.transaction() as connection:
            await welcome_node(connection, node, now_ms=now_ms)
        await world.beat(node_id)

    async def runs(self, gpus: int = 1, project: tuple[str, Any] | None = None, **columns: Any) -> str:
        """A job that was submitted, has been given its place, and trains."""
        job_id = await self.submit(gpus, project, **columns)
        await self.turn()
        await self.trains(job_id, step=50)
        return job_id

    async def trains(self, job_id: str, step: int) -> None:
        await self.report(job_id, "running", step)

    async def leaves(self, job_id: str, step: int = 60, *, saved: bool = True, **exit_: Any) -> None:
        await self.report(job_id, "exited", step, **({"exit_code": 0, "saved_after_stop": saved} | exit_))

    async def report(self, job_id: str, phase: str, step: int, **exit_: Any) -> None:
        world = self.world
        node_id = await world.node_of(job_id)
        async with world.database.transaction() as connection:
            every = await live_runs_of_node(connection, node_id)
            found = select(t.run_jobs).where(t.run_jobs.c.job_id == job_id, t.run_jobs.c.run_id.in_(every))
            run = (await connection.execute(found)).one()
        report = RunReport(
            run_id=run.run_id,
            job_id=job_id,
            epoch=run.epoch,
            phase=phase,  # type: ignore[arg-type]
            step=step,
            exit=ExitReport(**exit_) if phase == "exited" else None,
            saves=True,
        )
        now_ms = world.clock.now_ms()
        await apply_run_reports(world.database, world.ids, node_id, [report], now_ms=now_ms, fault_budget=3)

    async def lends(self, job_id: str, hours: float = 8, **more: Any) -> None:
        world, now_ms = self.world, self.world.clock.now_ms()
        until_ms = now_ms + round(hours * HOUR_MS)
        async with world.database.transaction() as connection:
            await begin_standby(
                connection, world.ids, world.project_id, job_id, until_ms=until_ms, now_ms=now_ms, **more
            )

    async def calls(self, job_id: str) -> None:
        world = self.world
        async with world.database.transaction() as connection:
            await end_standby(connection, world.project_id, job_id, now_ms=world.clock.now_ms())

    async def stands_by(self, job_id: str, hours: float = 8, step: int = 60) -> None:
        await self.lends(job_id, hours)
        await self.leaves(job_id, step)

    async def state(self, *job_ids: str) -> list[str]:
        return [str((await self.world.job(job_id)).state) for job_id in job_ids]

    async def standby(self) -> Any:
        (row,) = await self.world.rows(t.standbys)
        return row

    async def set_standby(self, **columns: Any) -> None:
        async with self.world.database.transaction() as connection:
            await connection.execute(update(t.standbys).values(**columns))

    async def check(self) -> None:
        """No GPU of a host has two machines on which a run is; nobody but spot jobs is on what is lent."""
        held: dict[tuple[str, int], str] = {}
        machines = {row.node_id: row for row in await self.world.rows(t.host_machines) if row.ended_ms is None}
        for row in await self.world.rows(t.allocations):
            if row.to_ms is not None or row.node_id not in machines:
                continue
            machine = machines[row.node_id]
            for index in machine.gpu_indices:
                assert held.setdefault((machine.host_id, index), row.node_id) == row.node_id, (
                    f"GPU {index} is used by two"
                )
        await self.world.check_invariants()


async def turns_though_it_dies(world: World, pool: LendingPool, database_url: str, stride: int) -> int:
    """Processes that die after ever more statements, until one lives for a whole turn; how many have died."""
    engine, alive = make_engine(database_url, pool_size=4, timeout_s=60), world.database
    died = 0
    try:
        for lifetime in range(1, 2_000, stride):
            world.seen_by_control = DyingDatabase(engine, lifetime)
            try:
                await world.restart()
                await pool.beat()
                await world.decide()
                break
            except KilledError:
                died += 1
                await pool.check()
    finally:
        world.seen_by_control = alive
        await world.restart()
        await engine.dispose()
    await world.work()
    await pool.host_works()
    return died
