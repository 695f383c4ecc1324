"""A world with machines of four GPUs that are half used, rented or of a pool, and a defragmentation that is driven
round by round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select, update

from app.core.defragmentation import Goal
from app.core.model.health import Chore
from app.core.model.job import JobState, Resources
from app.core.model.move import OPEN_MOVE_STATES
from app.core.model.node import ProviderTraits, Tier
from app.core.model.pool import JOINED
from app.db import tables as t
from app.ports.provider import Machine, MachineRequest
from app.services.defragmentation.ask_defragmentation import ask_defragmentation, call_off_defragmentation
from app.services.defragmentation.show import ShownDefragmentation, show_defragmentation
from tests.control.fake_provider import FakeProvider
from tests.control.moving import Moving
from tests.control.world import World
from tests.seeds import resources_json, seed_job, seed_node, seed_run

HOUR_MS = 3_600_000
GIB = 1024**3


class HostsOfPools(FakeProvider):
    """Starts machines on hosts that have joined."""

    def traits(self) -> tuple[ProviderTraits, ...]:
        return tuple(replace(one, tier=Tier.OWN) for one in super().traits()[:1])

    async def create(self, request: MachineRequest) -> Machine:
        self.on_offer = [request.offer]  # what is free is said by the rows of hosts
        return await super().create(request)


class Fragmented:
    """`nodes`: rented machines, by name. `jobs`: by name, with the node each was begun on."""

    def __init__(self, world: World, folder: Path, goal: Goal = Goal.RENT) -> None:
        self.world, self.goal, self._folder = world, goal, folder
        self.nodes: dict[str, str] = {}
        self.jobs: dict[str, str] = {}
        self.id = ""

    async def begin(self) -> None:
        world = self.world
        world.settings.heartbeat_check_s = 1
        world.settings.move_save_s = world.settings.move_load_s = world.settings.move_prepare_s = 2
        if self.goal is Goal.POOLS:
            hosts = HostsOfPools(world.clock, name=JOINED)
            hosts.on_offer = []
            world.other_clouds = [hosts]
            await world.restart()
            pool = {"name": "lab", "launcher": JOINED, "price_micros": 0, "created_ms": 0}
            async with world.database.transaction() as connection:
                await connection.execute(insert(t.pools).values(**pool))
        world.cloud.on_offer = []

    async def machine(self, name: str, gpus: int = 4, **columns: Any) -> None:
        """A rented machine, or a host of the pool."""
        world = self.world
        async with world.database.transaction() as connection:
            if self.goal is Goal.POOLS:
                kinds = [{"index": index, "type": "A100", "memory_bytes": 40 * GIB} for index in range(gpus)]
                row = {"id": f"host_{name}", "pool": "lab", "name": name, "nonce_sha256": name.encode(), "boot_id": ""}
                row |= {"facts": {"cpus": 32, "memory_bytes": 256 * GIB, "gpus": kinds}, "joined_ms": 0}
                await connection.execute(insert(t.hosts).values(**row, heard_ms=world.clock.now_ms(), **columns))
                return
            given = {"provider": "cloud", "gpu_count": gpus, "cpus": 32, "price_micros_per_hour": 4_000_000} | columns
            self.nodes[name] = await seed_node(connection, world.project_id, **given)

    async def trains(self, name: str, on: str, gpus: int = 2, first: int = 0, **columns: Any) -> str:
        """A job that has trained there for an hour, and so is expected to go on for one."""
        world = self.world
        began_ms = world.clock.now_ms() - HOUR_MS
        job = {"state": JobState.RUNNING, "epoch": 1, "step": 50, "checkpoint_step": 50, "saves_ms": 1}
        job |= {"resources": resources_json(Resources(gpus, gpus))}
        async with world.database.transaction() as connection:
            job_id = await seed_job(connection, world.project_id, world.app, id=world.ids.new("job"), **job | columns)
            if self.goal is Goal.POOLS:
                own = {"provider": JOINED, "tier": Tier.OWN, "region": "lab", "host": f"host_{on}/A100"}
                node_id = await seed_node(connection, world.project_id, gpu_count=gpus, price_micros_per_hour=0, **own)
                indices = tuple(range(gpus))
            else:
                node_id, indices = self.nodes[on], tuple(range(first, first + gpus))
            since = {"id": world.ids.new("run"), "running_ms": began_ms, "gpu_indices": indices}
            tier = Tier.OWN if self.goal is Goal.POOLS else Tier.MARKETPLACE
            await seed_run(connection, world.project_id, job_id, node_id, tier=tier, **since)
        self.jobs[name] = job_id
        return job_id

    async def half_used(self, machines: int = 3) -> None:
        """Of each of the first two half is used, and of the last one two quarters."""
        names = [chr(ord("a") + number) for number in range(machines)]
        for name in names:
            await self.machine(name)
        for name in names[:-1]:
            await self.trains(name, name)
        await self.trains("x", names[-1], 1)
        await self.trains("y", names[-1], 1, first=1)

    async def asks(self, most_moves: int = 20) -> str:
        world = self.world
        async with world.database.transaction() as connection:
            row = await ask_defragmentation(
                connection, world.ids, world.settings, self.goal, None, most_moves, now_ms=world.clock.now_ms()
            )
        self.id = row.id
        return row.id

    async def calls_off(self) -> None:
        async with self.world.database.transaction() as connection:
            await call_off_defragmentation(connection, self.id, now_ms=self.world.clock.now_ms())

    async def round(self, after_ms: int = 1_000) -> int:
        """One of the chore, and of the operations that follow; returns how many failures it had."""
        self.world.clock.advance(ms=after_ms)
        await self.heard()
        failed = await self.world.control.do(Chore.DEFRAG)
        await self.works()
        return failed

    async def works(self) -> None:
        """What the control loop and machines do beside it."""
        world = self.world
        await world.work()
        for node in await world.rows(t.nodes):
            if node.state == "booting":
                await world.boot(node.id)

    async def heard(self) -> None:
        now_ms = self.world.clock.now_ms()
        async with self.world.database.transaction() as connection:
            await connection.execute(update(t.hosts).values(heard_ms=now_ms))
        for node in await self.world.rows(t.nodes):
            if node.state in ("ready", "unreachable"):
                await self.world.beat(node.id)

    async def moving(self) -> list[Moving]:
        """Every move that is under way, as its agents drive it."""
        found = []
        for row in await self.world.rows(t.moves):
            if row.state in OPEN_MOVE_STATES:
                one = Moving(self.world, self._folder)
                one.job_id, one.source, one.target = row.job_id, row.source_run_id, row.target_run_id
                found.append(one)
        return found

    async def completes(self, move: Moving, step: int = 60) -> None:
        """Its agents carry it out: prepared, saved, left, and on."""
        await move.prepared()
        await move.saves(move.source, step, final=True)
        await move.says(move.target, "running", step)
        await move.says(move.source, "exited", step, exit_code=0, saved_after_stop=True)

    async def until_over(self, rounds: int = 40) -> ShownDefragmentation:
        """The agents do as they are told, and idle cuts of hosts are given back, as the loop does."""
        for _ in range(rounds):
            await self.round()
            for move in await self.moving():
                await self.completes(move)
            if self.goal is Goal.POOLS:
                await self.world.decide()
                await self.world.work()
            shown = await self.shown()
            if shown.row.ended_ms is not None:
                return shown
        raise AssertionError(f"not over: {shown}")

    async def shown(self) -> ShownDefragmentation:
        async with self.world.database.transaction() as connection:
            return await show_defragmentation(connection, self.id)

    async def states(self) -> list[str]:
        return [str(one.release.state) for one in (await self.shown()).releases]

    async def why(self) -> str:
        """Of the first release."""
        return (await self.shown()).releases[0].end_message or ""

    async def place_of(self, name: str) -> str:
        """Where the job of this name holds GPUs: the name of the machine."""
        node = await self.world.node(await self.world.node_of(self.jobs[name]))
        if self.goal is Goal.POOLS:
            return str(node.host).removeprefix("host_").partition("/")[0]
        return next(name for name, node_id in self.nodes.items() if node_id == node.id)

    async def used(self) -> set[str]:
        """The machines on which a live run is."""
        async with self.world.database.transaction() as connection:
            held = select(t.allocations.c.node_id).where(t.allocations.c.to_ms.is_(None))
            node_ids = set((await connection.execute(held)).scalars())
        nodes = [await self.world.node(node_id) for node_id in node_ids]
        if self.goal is Goal.POOLS:
            return {str(node.host).removeprefix("host_").partition("/")[0] for node in nodes}
        return {name for name, node_id in self.nodes.items() if node_id in node_ids}
