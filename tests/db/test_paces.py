"""Turns at a provider: given out one by one to all processes, and never to anybody who would wait too long."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from sqlalchemy import update

from app.db.clock import database_now_plus
from app.db.engine import Database, make_engine
from app.db.offers.call_paces import DatabasePace
from app.db.tables import provider_paces
from app.errors import RateLimited, Transient
from app.ports.pace import Pace, ProcessPace
from tests.conftest import ManualClock

_HOUR_MS = 3_600_000


class _NotingClock(ManualClock):
    """Keeps how long each sleeper was told to wait; nobody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_ms: list[int] = []

    async def sleep_ms(self, duration_ms: int) -> None:
        self.waits_ms.append(duration_ms)


def _pace(database: Database, clock: ManualClock, provider: str = "lambda", patience_ms: int = _HOUR_MS) -> Pace:
    return DatabasePace(database, provider, clock=clock, patience_ms=patience_ms)


async def test_turns_taken_by_many_processes_at_once_are_apart_by_the_interval(database: Database) -> None:
    """Thirty callers over several paces: nobody shares a turn, so that their waits are one interval apart."""
    clock = _NotingClock()
    paces = [_pace(database, clock) for _ in range(3)]
    every_ms = 60_000
    await asyncio.gather(*(paces[number % 3].turn("launch", every_ms) for number in range(30)))
    waits = sorted([0] * (30 - len(clock.waits_ms)) + clock.waits_ms)
    assert waits[0] == 0
    # The waits are told from slightly different moments: what is certain is that no two are for the same turn.
    assert all(later - earlier > every_ms / 2 for earlier, later in itertools.pairwise(waits))
    assert waits[-1] <= 29 * every_ms


async def test_lanes_and_providers_have_turns_of_their_own(database: Database) -> None:
    """A launch does not hold up a listing, and one company's limit does not hold up another's."""
    clock = _NotingClock()
    await _pace(database, clock).turn("launch", _HOUR_MS)
    await _pace(database, clock).turn("any", _HOUR_MS)
    await _pace(database, clock, "vast").turn("launch", _HOUR_MS)
    assert clock.waits_ms == []


async def test_a_turn_too_far_away_is_refused_with_the_time_left_and_stays_free(database: Database) -> None:
    """However often somebody impatient asks, the next turn is no further away for the others."""
    clock = _NotingClock()
    hasty = _pace(database, clock, patience_ms=1_000)
    await hasty.turn("launch", 60_000)
    for _ in range(5):
        with pytest.raises(RateLimited) as refused:
            await hasty.turn("launch", 60_000)
        assert 1_000 < refused.value.retry_after_ms <= 60_000
    await _pace(database, clock).turn("launch", 60_000)
    assert len(clock.waits_ms) == 1
    assert clock.waits_ms[0] <= 60_000


async def test_a_lane_that_was_idle_gives_its_turn_at_once(database: Database) -> None:
    """Unused time is not saved up: after a rest comes one turn at once, then the interval."""
    clock = _NotingClock()
    pace = _pace(database, clock)
    await pace.turn("launch", 60_000)
    async with database.transaction() as connection:
        await connection.execute(update(provider_paces).values(next_at=database_now_plus(-3600)))
    await pace.turn("launch", 60_000)
    assert clock.waits_ms == []
    await pace.turn("launch", 60_000)
    assert len(clock.waits_ms) == 1


async def test_without_the_database_no_call_is_made() -> None:
    """The caller is told that nothing happened, so that it may try again."""
    database = Database(make_engine("postgresql://nobody@127.0.0.1:1/none", pool_size=1, timeout_s=1))
    with pytest.raises(Transient):
        await _pace(database, _NotingClock()).turn("launch", 1)
    await database.close()


async def test_one_process_keeps_the_same_pace_by_itself(clock: ManualClock) -> None:
    """Without a database: the interval is kept, and a turn too far away is refused without being used up."""
    pace = ProcessPace(clock, patience_ms=1_500)
    began_ms = clock.now_ms()
    await pace.turn("any", 1_000)
    await pace.turn("any", 1_000)
    assert clock.now_ms() == began_ms + 1_000
    await pace.turn("launch", 12_000)
    for _ in range(3):
        with pytest.raises(RateLimited) as refused:
            await pace.turn("launch", 12_000)
        assert refused.value.retry_after_ms == 12_000
    clock.advance(s=12)
    await pace.turn("launch", 12_000)
