"""Coalescing writes: every caller gets its own result, once, whatever arrives when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidInput, Unavailable
from app.services.kit.group_commit import GroupCommit


class Store:
    """Remembers each write; one write takes a few turns of the loop. Negative items are refused."""

    def __init__(self, turns: int = 2) -> None:
        self.batches: list[list[int]] = []
        self.kept: list[int] = []
        self.gone = False
        self._turns = turns

    async def write(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        for _ in range(self._turns):
            await asyncio.sleep(0)
        if self.gone:
            raise Unavailable("gone")
        if any(item < 0 for item in items):
            raise InvalidInput("negative")
        self.kept.extend(items)
        return [item * 10 for item in items]


def commits(
    store: Store, *, max_batch: int = 100, max_waiting: int = 1000, writers: int = 1, least_share: int = 1
) -> GroupCommit[int, int]:
    return GroupCommit(
        store.write, max_batch=max_batch, max_waiting=max_waiting, writers=writers, least_share=least_share
    )


async def test_what_arrives_during_a_write_goes_with_the_next() -> None:
    """The first caller does not wait for company; the others share one write."""
    store = Store()
    group = commits(store)
    first = asyncio.ensure_future(group.submit(0))
    while not store.batches:
        await asyncio.sleep(0)
    results = await asyncio.gather(*(group.submit(number) for number in range(1, 50)))
    assert await first == 0
    assert results == [number * 10 for number in range(1, 50)]
    assert store.batches == [[0], list(range(1, 50))]


@given(
    arrivals=st.lists(st.tuples(st.integers(-3, 50), st.integers(0, 12)), max_size=60),
    turns=st.integers(0, 4),
    max_batch=st.integers(1, 7),
    writers=st.integers(1, 3),
    least_share=st.integers(1, 9),
)
@settings(max_examples=150)
def test_nobody_waits_forever_and_nobody_gets_another_ones_result(
    arrivals: list[tuple[int, int]], turns: int, max_batch: int, writers: int, least_share: int
) -> None:
    """Items arriving at any turn of the loop are each kept exactly once, or refused to exactly their callers."""

    async def story() -> None:
        store = Store(turns)
        group = commits(store, max_batch=max_batch, writers=writers, least_share=least_share)

        async def caller(item: int, wait_turns: int) -> None:
            for _ in range(wait_turns):
                await asyncio.sleep(0)
            if item < 0:
                with pytest.raises(InvalidInput):
                    await group.submit(item)
            else:
                assert await group.submit(item) == item * 10

        async with asyncio.timeout(60):
            await asyncio.gather(*(caller(*arrival) for arrival in arrivals))
        assert sorted(store.kept) == sorted(item for item, _ in arrivals if item >= 0)
        assert all(len(batch) <= max_batch for batch in store.batches)

    asyncio.run(story())


async def test_a_crowd_is_split_between_the_writers_and_a_few_are_not() -> None:
    """Two writers take half each and keep doing so; below the least share all go together."""
    store = Store(turns=20)
    group = commits(store, writers=2, least_share=4)
    await asyncio.gather(*(group.submit(number) for number in range(16)))
    assert [len(batch) for batch in store.batches] == [8, 8]
    store.batches.clear()
    await asyncio.gather(*(group.submit(number) for number in range(4)))
    assert [len(batch) for batch in store.batches] == [4]


async def test_when_the_store_is_gone_everybody_is_told_and_nothing_is_tried_one_by_one() -> None:
    """Whether the write took place is unknown: each caller must ask again with its key."""
    store = Store()
    store.gone = True
    results = await asyncio.gather(*(commits(store).submit(number) for number in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 3
    group = commits(store)
    await asyncio.gather(*(group.submit(number) for number in range(3)), return_exceptions=True)
    assert store.batches[-1] == [0, 1, 2]
    store.gone = False
    assert await group.submit(4) == 40


async def test_the_queue_is_bounded() -> None:
    """One more than may wait is turned away at once, with an error that says to retry."""
    group = commits(Store(), max_waiting=2)
    waiting = [group.submit(number) for number in range(2)]
    with pytest.raises(Unavailable, match="waiting"):
        await group.submit(3)
    assert await asyncio.gather(*waiting) == [0, 10]


async def test_a_caller_that_gave_up_is_not_written_for() -> None:
    """A submission cancelled while it waits is left out; its neighbours are not."""
    store = Store()
    group = commits(store)
    first = asyncio.ensure_future(group.submit(0))
    while not store.batches:
        await asyncio.sleep(0)
    gone, stays = asyncio.ensure_future(group.submit(1)), asyncio.ensure_future(group.submit(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert [await first, await stays] == [0, 20]
    assert store.batches == [[0], [2]]


async def test_a_crowd_in_one_lane_delays_nobody_in_another() -> None:
    """Lanes are served in turn: who comes last, alone in a lane, is written with the next batch."""
    store = Store()
    group = commits(store, max_batch=4)
    crowd = [group.submit(number, lane="a") for number in range(40)]
    late = [group.submit(number, lane="b") for number in (100, 101)]
    results = await asyncio.gather(*crowd, *late)
    assert results == [number * 10 for number in (*range(40), 100, 101)]
    assert store.batches[:2] == [[0, 100, 1, 101], [2, 3, 4, 5]]


async def test_a_crowd_in_one_lane_keeps_nobody_out_of_another() -> None:
    """Whoever fills the queue is refused, and not who comes after: each lane has its share of the room."""
    group = commits(Store(), max_waiting=10)
    waiting = [group.submit(number, lane="a") for number in range(10)]
    with pytest.raises(Unavailable):
        group.submit(10, lane="a")
    waiting += [group.submit(number, lane="b") for number in range(5)]
    for lane in ("a", "b"):
        with pytest.raises(Unavailable, match="try again"):
            group.submit(11, lane=lane)
    assert len(await asyncio.gather(*waiting)) == 15
