"""Following events: every follower gets each event once, in order, whatever its speed, at one read per change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.model.job import JobEnd, JobState
from app.db.engine import Database
from app.db.listen import Listener
from app.db.reading.job_records import EventRow
from app.db.transitions import Event, add_job_event, move_job
from app.errors import NotFound
from app.services.reading.follow_events import EventBatch, EventHub, Follower
from tests.seeds import T0_MS, new_id, seed_job, seed_project

PATIENCE_S = 60


def encode(row: EventRow) -> bytes:
    return b"%d " % row.position


@pytest.fixture
async def listener(database_url: str) -> AsyncIterator[Listener]:
    listener = Listener(database_url, timeout_s=30)
    await listener.start()
    yield listener
    await listener.close()


async def new_job(database: Database) -> str:
    async with database.transaction() as connection:
        return await seed_job(connection, await seed_project(connection))


async def add_events(database: Database, job_id: str, count: int) -> None:
    async with database.transaction() as connection:
        for _ in range(count):
            await add_job_event(connection, job_id, Event("note", "n"), now_ms=T0_MS)


async def end(database: Database, job_id: str) -> None:
    """One more event, the last: the job is cancelled."""
    async with database.transaction() as connection:
        event = Event(JobState.CANCELLED, "over")
        assert await move_job(
            connection, job_id, JobState.CANCELLED, event, now_ms=T0_MS, end_reason=JobEnd.CANCELLED, ended_ms=T0_MS
        )


async def follow(hub: EventHub, job_id: str, after: int = 0, pauses: int = 0) -> tuple[list[int], JobState | None]:
    """All positions that a follower gets, yielding to others `pauses` times after each batch; and how it ended."""
    got: list[int] = []
    state = None
    async with asyncio.timeout(PATIENCE_S), aclosing(hub.follow(job_id, Follower(after))) as batches:
        async for batch in batches:
            if isinstance(batch, JobState):
                state = batch
                continue
            got += [int(one) for one in batch.content.split()]
            for _ in range(pauses):
                await asyncio.sleep(0)
    return got, state


@given(
    bursts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    followers=st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0, 1, 30, 400])), min_size=1, max_size=6),
    window=st.sampled_from([1, 2, 7, 64]),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_follower_ever_skips_or_repeats_an_event(
    database: Database, listener: Listener, bursts: list[int], followers: list[tuple[int, int]], window: int
) -> None:
    """Whatever the speed, the start, the size of the bursts and of the window: all positions after the start, once."""
    job_id = await new_job(database)
    hub = EventHub(database, listener, encode, poll_s=0.5, window_events=window)
    tasks = [asyncio.create_task(follow(hub, job_id, after, pauses)) for after, pauses in followers]
    for burst in bursts:
        await add_events(database, job_id, burst)
        await asyncio.sleep(0)
    await end(database, job_id)
    last = sum(bursts) + 1
    for (after, _), (got, state) in zip(followers, await asyncio.gather(*tasks), strict=True):
        assert got == list(range(after + 1, last + 1))
        assert state is JobState.CANCELLED
    assert (hub.followers, hub.followed_jobs) == (0, 0)


async def test_a_thousand_followers_cost_one_read_per_change(database: Database, listener: Listener) -> None:
    """The number of reads follows the changes, not the followers."""
    job_id = await new_job(database)
    hub = EventHub(database, listener, encode, poll_s=60.0)
    tasks = [asyncio.create_task(follow(hub, job_id)) for _ in range(1000)]
    changes = 5
    for number in range(changes):
        await add_events(database, job_id, 1)
        async with asyncio.timeout(PATIENCE_S):
            while hub.reads <= number:
                await asyncio.sleep(0.001)
    await end(database, job_id)
    results = await asyncio.gather(*tasks)
    assert all(result == (list(range(1, changes + 2)), JobState.CANCELLED) for result in results)
    assert hub.reads <= 2 * (changes + 2)  # the first one, and at most one more per notification
    assert hub.catch_ups == 0


async def test_a_follower_that_leaves_frees_everything_at_once(database: Database, listener: Listener) -> None:
    """Wherever it waits: the stream ends, and with the last follower its reader and its wake-ups."""
    job_id = await new_job(database)
    hub = EventHub(database, listener, encode, poll_s=60.0)
    stays, leaves = Follower(0), Follower(0)

    async def read(follower: Follower) -> list[EventBatch | JobState]:
        async with aclosing(hub.follow(job_id, follower)) as batches:
            return [batch async for batch in batches]

    tasks = [asyncio.create_task(read(follower)) for follower in (stays, leaves)]
    async with asyncio.timeout(PATIENCE_S):
        while hub.followers < 2 or hub.reads < 1:
            await asyncio.sleep(0)
        leaves.leave()
        assert await tasks[1] == []
        assert (hub.followers, hub.followed_jobs) == (1, 1)
        stays.leave()
        assert await tasks[0] == []
    assert (hub.followers, hub.followed_jobs) == (0, 0)
    async with asyncio.timeout(PATIENCE_S):
        while any(task.get_name().startswith("events of") for task in asyncio.all_tasks()):
            await asyncio.sleep(0)


async def test_a_cancelled_stream_frees_its_place(database: Database, listener: Listener) -> None:
    """As when the server stops: nothing of it is left."""
    job_id = await new_job(database)
    hub = EventHub(database, listener, encode, poll_s=60.0)
    task = asyncio.create_task(follow(hub, job_id))
    async with asyncio.timeout(PATIENCE_S):
        while not hub.followers:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (hub.followers, hub.followed_jobs) == (0, 0)


async def test_signs_of_life_while_nothing_happens(database: Database, listener: Listener) -> None:
    """A follower without news gets empty batches at its position, so often."""
    job_id = await new_job(database)
    hub = EventHub(database, listener, encode, poll_s=60.0, beat_s=0.01)
    async with asyncio.timeout(PATIENCE_S), aclosing(hub.follow(job_id, Follower(0))) as batches:
        beats = [await anext(batches) for _ in range(3)]
    assert beats == [EventBatch(0, b"")] * 3


async def test_news_arrive_without_notifications(database: Database, database_url: str) -> None:
    """The poll behind the wake-ups finds what was missed."""
    job_id = await new_job(database)
    hub = EventHub(database, Listener(database_url, timeout_s=1), encode, poll_s=0.02)  # never started
    task = asyncio.create_task(follow(hub, job_id))
    async with asyncio.timeout(PATIENCE_S):
        while not hub.reads:
            await asyncio.sleep(0)
    await add_events(database, job_id, 3)
    await end(database, job_id)
    assert await task == ([1, 2, 3, 4], JobState.CANCELLED)


async def test_a_job_that_does_not_exist_is_told(database: Database, listener: Listener) -> None:
    """Its followers hear NotFound, and nothing is kept of it."""
    hub = EventHub(database, listener, encode, poll_s=60.0)
    with pytest.raises(NotFound):
        await follow(hub, new_id("job"))
    assert (hub.followers, hub.followed_jobs) == (0, 0)
