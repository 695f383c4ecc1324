"""Two jobs on two machines that change places: each one's target is on the machine of the other's source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.core.model.plan import Assign, Migrate, Provision
from app.db import tables as t
from tests.control.moving import Moving
from tests.control.world import World


class Crossing:
    """`first` goes from the first node to the second, `second` the other way. Both moves prepare."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.first, self.second = Moving(world, folder), Moving(world, folder)

    async def begin(self) -> None:
        cloud = self.world.cloud
        cloud.on_offer[1] = replace(cloud.on_offer[1], gpu_count=2, cpus=64, memory_bytes=2**38)
        for moving in (self.first, self.second):
            moving.job_id = await self.world.submit()
            moving.source_node = await self._rent(moving)
            await self._settle_in(moving)
        for moving, other in ((self.first, self.second), (self.second, self.first)):
            moving.target_node = other.source_node
            ids = (moving.job_id, moving.source, moving.target_node)
            to = (moving.job_id, moving.source, moving.target_node, (1,))
            assert await moving.enact(Migrate(*to, "they change places", await moving.versions(*ids))) == ()
            moving.target = (await moving.move()).target_run_id

    async def _rent(self, moving: Moving) -> str:
        world = self.world
        versions = await moving.versions(moving.job_id)
        offer = world.cloud.on_offer[1]
        assert (
            await moving.enact(Provision(world.project_id, moving.job_id, offer, "a node of its own", versions)) == ()
        )
        await world.work()
        node_id = str((await world.newest_node()).id)
        await world.boot(node_id)
        return node_id

    async def _settle_in(self, moving: Moving) -> None:
        versions = await moving.versions(moving.job_id, moving.source_node)
        assert await moving.enact(Assign(moving.job_id, moving.source_node, (0,), "its node", versions)) == ()
        moving.source = (await self.world.rows(t.runs))[-1].id
        assert await moving.says(moving.source, "running")
