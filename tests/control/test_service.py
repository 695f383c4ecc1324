"""The control loop as one process runs it: woken by what happens, leading or following, stopped without a trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import select

from app.control.service import ControlService
from app.db import notify
from app.db import tables as t
from app.db.engine import Database
from app.system import SystemClock
from tests.conftest import CountingIds, ManualClock
from tests.control.fake_provider import FakeProvider
from tests.control.world import World, make_settings
from tests.seeds import seed_app, seed_project

_DEADLINE_S = 60.0


class SteadyIds(CountingIds):
    """Counting ids beside a clock that runs."""

    def __init__(self) -> None:
        super().__init__(ManualClock())


@pytest.fixture
def live(database: Database, database_url: str) -> World:
    """A world on the real clock, whose control process nobody drives by hand. Polls and ticks are far apart."""
    settings = make_settings(database_url, poll_s=30, tick_s=3600, meter_s=3600, sweep_s=3600)
    clock = SystemClock()
    world = World(database, settings, clock, SteadyIds())  # type: ignore[arg-type]  # it has next() alone
    world.cloud = FakeProvider(clock)
    return world


@asynccontextmanager
async def _serving(world: World, count: int = 1) -> AsyncIterator[list[ControlService]]:
    async with world.database.transaction() as connection:
        world.project_id = await seed_project(connection)
        world.app = await seed_app(connection, world.project_id)
    services = [world.new_control() for _ in range(count)]
    try:
        for service in services:
            await service._listener.start()
            await service.start()
        yield services
    finally:
        for service in services:
            await service.stop()
            await service._listener.close()


async def _eventually(what: Callable[[], Awaitable[bool]]) -> None:
    until = time.monotonic() + _DEADLINE_S
    while not await what():
        assert time.monotonic() < until, "it did not happen in time"
        await asyncio.sleep(0.02)


async def _submit(world: World) -> str:
    job_id = await world.submit()
    async with world.database.transaction() as connection:
        await notify.control(connection)
    return job_id


async def test_a_submitted_job_gets_its_machine_without_waiting_for_any_tick(live: World) -> None:
    """A wake-up is enough: polls and ticks are half a minute and an hour away."""
    async with _serving(live):
        job_id = await _submit(live)

        async def booting() -> bool:
            job = await live.job(job_id)
            return job.state == "starting" and (await live.newest_node()).state == "booting"

        await _eventually(booting)
        node_id = await live.node_of(job_id)
        await live.boot(node_id)
        await live.report(node_id, "running")
        await live.report(node_id, "exited", exit_code=0)

        async def ended() -> bool:
            return (await live.node(node_id)).state == "terminated"

        await _eventually(ended)
        assert live.cloud.alive() == []
        assert await live.ledger_sum() == live.cloud.bill().micros


async def test_old_answers_to_repeated_requests_are_forgotten(live: World) -> None:
    """Idempotency keys are kept for a day, as documented, and not for ever."""
    now_ms = live.clock.now_ms()
    rows = [
        {"key": "yesterday", "created_ms": now_ms - 86_400_001},
        {"key": "today", "created_ms": now_ms - 86_000_000},
    ]
    async with live.database.transaction() as connection:
        project_id = await seed_project(connection)
    common = {"project_id": project_id, "route": "r", "body_sha256": b"", "status": 201, "response": {}}
    async with live.database.transaction() as connection:
        await connection.execute(t.idempotency_keys.insert(), [common | row for row in rows])
    async with _serving(live):

        async def forgotten() -> bool:
            async with live.database.transaction() as connection:
                keys = (await connection.execute(select(t.idempotency_keys.c.key))).scalars().all()
            return keys == ["today"]

        await _eventually(forgotten)


async def test_of_two_processes_one_decides_and_when_it_stops_the_other_takes_over(live: World) -> None:
    """Two control processes start one machine per job, and a clean stop hands the lead over."""
    async with _serving(live, count=2) as (one, two):

        async def someone_leads() -> bool:
            return one.context.leader.leads or two.context.leader.leads

        await _eventually(someone_leads)
        first, second = (one, two) if one.context.leader.leads else (two, one)
        job_id = await _submit(live)

        async def started() -> bool:
            return (await live.job(job_id)).state == "starting" and len(live.cloud.alive()) == 1

        await _eventually(started)
        await first.stop()
        await first.stop()

        async def handed_over() -> bool:
            return second.context.leader.leads

        await _eventually(handed_over)
        later = await _submit(live)

        async def started_too() -> bool:
            return (await live.job(later)).state == "starting" and len(live.cloud.alive()) == 2

        await _eventually(started_too)
        assert live.cloud.creates == 2
        assert {row.term for row in await live.rows(t.ticks)} == {1, 2}


async def test_a_stop_that_comes_with_a_wake_up_stops_all_the_same(live: World) -> None:
    """The cancellation is not lost between the two, neither in the deciding task nor in the working one."""
    async with _serving(live) as (service,):
        for _ in range(3):  # the tasks reach their rest, whatever they found first
            await asyncio.sleep(0.05)
        service.loop.request("change")
        for watchers in service._listener._watchers.values():
            for woken in watchers:
                woken.set()
        async with asyncio.timeout(_DEADLINE_S):
            await service.stop()


async def test_starting_and_stopping_twice_is_harmless(live: World) -> None:
    """Nothing runs on after a stop, and a stopped service that never led gives nothing back."""
    before = asyncio.all_tasks()
    async with _serving(live) as (service,):
        await service.start()
        await service.stop()
        await service.stop()
    assert asyncio.all_tasks() == before
    await live.new_control().stop()
