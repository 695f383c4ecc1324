"""The database goes away under the control loop and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import pytest

from app.db import notify
from app.db.engine import Database
from app.errors import Unavailable
from app.stack.postgres import EmbeddedPostgres
from app.system import SystemClock
from tests.control.fake_provider import FakeProvider
from tests.control.test_service import SteadyIds
from tests.control.world import World, make_settings
from tests.seeds import seed_app, seed_project

PATIENCE_S = 60.0


async def eventually(what: str, look: Callable[[], Awaitable[bool]]) -> None:
    """Until `look` says yes. A connection that died with the old server may fail once more: that is no answer."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(Unavailable):
            if await look():
                return
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        await asyncio.sleep(0.05)


async def test_the_control_loop_goes_on_when_the_database_is_back(
    database: Database, database_url: str, postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """While it is away this process stops believing that it leads; afterwards it decides and rents again, by itself."""
    # Ids of another kind serve as well.
    world = World(database, make_settings(database_url, leader_lease_s=2, poll_s=0.2), SystemClock(), SteadyIds())  # type: ignore[arg-type]
    world.cloud = FakeProvider(world.clock)
    async with database.transaction() as connection:
        world.project_id = await seed_project(connection)
        world.app = await seed_app(connection, world.project_id)
    control = world.new_control()
    await control._listener.start()
    await control.start()
    try:
        await eventually("the lead", lambda: _says(control.context.leader.leads))
        await asyncio.to_thread(postgres.stop)
        try:
            await eventually("the lead to be given up", lambda: _says(not control.context.leader.leads))
            await eventually("a renewal", lambda: _says("the lease could not be renewed" in caplog.text))
        finally:
            postgres.start()  # it lives as long as the thread that starts it: not a worker's
        job_ids: list[str] = []

        async def submitted() -> bool:
            job_ids.append(await world.submit())
            async with database.transaction() as connection:
                await notify.control(connection)
            return True

        await eventually("the submission", submitted)

        async def booting() -> bool:
            job = await world.job(job_ids[-1])
            return bool(job.state == "starting" and (await world.newest_node()).state == "booting")

        await eventually("a machine", booting)
        await eventually("the lead again", lambda: _says(control.context.leader.leads))
    finally:
        await control.stop()
        await control._listener.close()
    assert "Traceback" not in caplog.text


async def _says(truth: bool) -> bool:
    return truth
