"""In a crowd, who is new is told at once why it waits, and everybody else in turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.control import telling
from app.control.telling import Telling
from app.core.model.job import JobState
from app.core.model.snapshot import JobView
from tests.control.world import World
from tests.core.samples import job


@pytest.fixture(autouse=True)
def small_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "CROWD", 3)
    monkeypatch.setattr(telling, "_AT_ONCE", 2)


def crowd(*numbers: int) -> list[JobView]:
    return [replace(job("job_a", JobState.QUEUED), job_id=f"job_{number}") for number in sorted(numbers)]


def told(one: Telling, jobs: list[JobView], now_ms: int) -> list[str]:
    ranges = one.begin(jobs, now_ms)
    assert ranges
    return [view.job_id for view in jobs if any(first <= view.job_id <= last for first, last in ranges)]


def test_few_are_all_told_in_every_decision() -> None:
    one = Telling()
    assert one.begin(crowd(1, 2, 3), 0) == ()
    assert one.wake_ms() is None


def test_everybody_has_a_turn_before_anybody_has_two() -> None:
    one, jobs = Telling(), crowd(1, 2, 3, 4, 5)
    turns = [told(one, jobs, now_ms) for now_ms in (0, 1_000, 2_000, 3_000)]
    assert turns == [["job_1", "job_2"], ["job_3", "job_4"], ["job_5"], ["job_1", "job_2"]]


def test_turns_are_a_second_apart_and_wake_the_loop() -> None:
    """News that come by the hundred cost no hundred turns."""
    one, jobs = Telling(), crowd(1, 2, 3, 4, 5)
    told(one, jobs, 0)
    assert told(one, jobs, 999) == []
    assert one.wake_ms() == 1_000


def test_who_comes_is_told_at_once() -> None:
    one = Telling()
    told(one, crowd(1, 2, 3, 4), 0)
    assert told(one, crowd(1, 2, 3, 4, 7, 8, 9), 500) == ["job_7", "job_8", "job_9"]
    assert told(one, crowd(1, 2, 3, 4, 7, 8, 9), 600) == []


def test_a_turn_goes_on_when_those_at_its_border_are_gone() -> None:
    one = Telling()
    told(one, crowd(1, 2, 3, 4, 5, 6), 0)
    assert told(one, crowd(1, 4, 5, 6), 1_000) == ["job_4", "job_5"]
    assert told(one, crowd(1, 2, 3, 4), 2_000) == ["job_1", "job_2"]


async def test_every_job_of_a_crowd_is_told_why_it_waits(world: World) -> None:
    """Whatever is planned is planned for all of them; the words come within so many seconds."""
    world.cloud.on_offer = []
    waiting = [await world.submit() for _ in range(7)]
    known = []
    for _ in range(4):
        await world.decide()
        known.append(len([one for one in waiting if (await world.job(one)).wait_reason is not None]))
        world.clock.advance(s=1)
    assert known == [2, 4, 6, 7]
