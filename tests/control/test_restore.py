"""A dump is restored while machines run: what the restored database knows goes on, what it does not know is ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from app.db import tables as t
from app.db.engine import Database, make_engine
from app.errors import Unauthenticated
from app.services.kit.node_tokens import TokenMint
from app.services.nodes.authenticate_node import authenticate_node
from app.stack.postgres import _binaries
from tests.control.world import World, make_settings
from tests.databases import Databases, name_of


def tool(name: str, url: str, *arguments: str) -> None:
    """One of PostgreSQL's own programs, over that database."""
    place = make_url(url)
    command = [str(_binaries() / name), "-h", "127.0.0.1", "-p", str(place.port), "-U", str(place.username), *arguments]
    environment = {**os.environ, "PGPASSWORD": str(place.password)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


class Dump:
    """A dump of a world's database, and the world as it goes on with what was restored from it."""

    def __init__(self, databases: Databases, folder: Path, stack: AsyncExitStack) -> None:
        self._databases = databases
        self._file = folder / "dump"
        self._stack = stack

    def take(self, world: World) -> None:
        url = world.settings.database_url.get_secret_value()
        tool("pg_dump", url, "-Fc", "-f", str(self._file), str(make_url(url).database))

    async def restore(self, world: World) -> World:
        """Every process of the service was stopped; clouds and machines went on."""
        url = await asyncio.to_thread(self._databases.make)
        tool("pg_restore", url, "-d", name_of(url), "--no-owner", str(self._file))
        database = Database(make_engine(url, pool_size=8, timeout_s=10.0))
        self._stack.push_async_callback(database.close)
        again = World(database, make_settings(url), world.clock, world.ids)
        again.cloud, again.project_id, again.app = world.cloud, world.project_id, world.app
        await again.restart()
        return again


@pytest.fixture
async def dump(databases: Databases, tmp_path: Path) -> AsyncIterator[Dump]:
    async with AsyncExitStack() as stack:
        yield Dump(databases, tmp_path, stack)


async def settle(world: World, rounds: int = 25) -> None:
    for _ in range(rounds):
        world.clock.advance(s=30)
        for node in await world.rows(t.nodes):
            living = [one for one in world.cloud.alive() if one.label == node.id]
            if node.state == "ready" and living:
                await world.beat(node.id)
        await world.check_heartbeats()
        await world.sweep()
        await world.decide()
        await world.work()
        await world.meter()


async def test_a_run_that_both_know_goes_on(world: World, dump: Dump) -> None:
    """A job that trained at the time of the dump and still does ends as if nothing had been; the bill is right."""
    job_id, node_id = await world.run_on_serverless()
    dump.take(world)
    world.clock.advance(s=60)
    await world.report(node_id, "running")
    after = await dump.restore(world)
    await after.report(node_id, "exited", exit_code=0)
    await settle(after, 3)
    assert (await after.job(job_id)).state == "succeeded"
    assert after.cloud.alive() == []
    assert await after.ledger_sum() == after.cloud.bill().micros
    await after.check_invariants()


async def test_machines_of_jobs_submitted_since_the_dump_are_ended(world: World, dump: Dump) -> None:
    """Nobody knows them any more: their agents are not let in, and after the grace for orphans the machines are ended
    and paid for."""
    dump.take(world)
    _job_id, node_id = await world.run_on_serverless()
    after = await dump.restore(world)
    assert [job.id for job in await after.rows(t.jobs)] == []
    token = TokenMint.of(after.settings).token(node_id)
    with pytest.raises(Unauthenticated):
        await authenticate_node(after.database, f"Bearer {token}")
    assert len(after.cloud.alive()) == 1
    await settle(after)
    assert after.cloud.alive() == []
    (orphan,) = await after.rows(t.nodes)
    assert (orphan.orphan, orphan.state) == (True, "terminated")
    assert await after.ledger_sum() == after.cloud.bill().micros > 0


async def test_a_run_that_has_ended_since_the_dump_is_done_again(world: World, dump: Dump) -> None:
    """Its machine is gone, says the provider: the job begins again from the newest checkpoint that is known, on another
    machine, and what the first one cost is in the ledger."""
    job_id, node_id = await world.run_on_serverless()
    dump.take(world)
    world.clock.advance(s=60)
    await world.report(node_id, "exited", exit_code=0)
    await world.work()
    assert world.cloud.alive() == []
    after = await dump.restore(world)
    assert (await after.job(job_id)).state == "running"
    await settle(after, 4)
    assert await after.node_of(job_id) != node_id
    assert (await after.node(node_id)).meter_closed
    await after.boot(await after.node_of(job_id))
    await after.report(await after.node_of(job_id), "running")
    await after.report(await after.node_of(job_id), "exited", exit_code=0)
    await settle(after, 3)
    assert (await after.job(job_id)).state == "succeeded"
    assert await after.ledger_sum() == after.cloud.bill().micros
    await after.check_invariants()


async def test_an_epoch_that_is_given_again_is_of_another_run(world: World, dump: Dump) -> None:
    """The run of an epoch that was given since the dump writes nothing, though the epoch's number is given again."""
    job_id, first = await world.run_on_serverless()
    dump.take(world)
    await world.report(first, "exited", signal=9)
    await world.work()
    world.clock.advance(s=60)
    await world.decide()
    await world.work()
    unknown = await world.node_of(job_id)
    await world.boot(unknown)
    await world.report(unknown, "running")
    lost_epoch = (await world.job(job_id)).epoch
    after = await dump.restore(world)
    with pytest.raises(Unauthenticated):
        await authenticate_node(after.database, f"Bearer {TokenMint.of(after.settings).token(unknown)}")
    given = await _new_node(after, job_id, but=(first, unknown))
    assert (await after.job(job_id)).epoch >= lost_epoch, "the number is given again"
    await after.boot(given)
    await after.report(given, "running")
    await after.report(given, "exited", exit_code=0)
    await settle(after, 4)
    assert (await after.job(job_id)).state == "succeeded"
    assert after.cloud.alive() == [], "the machine that nobody knows was ended as well"
    await after.check_invariants()


async def _new_node(world: World, job_id: str, *, but: tuple[str, ...]) -> str:
    """Where the job comes to, once its old machine is known to be gone."""
    for _ in range(20):
        await settle(world, 1)
        live = [run.id for run in await world.rows(t.runs) if run.state != "ended"]
        for stay in await world.rows(t.allocations):
            if stay.run_id in live and stay.node_id not in but:
                assert stay.node_id == await world.node_of(job_id)
                return str(stay.node_id)
    raise AssertionError(f"{job_id} came nowhere")
