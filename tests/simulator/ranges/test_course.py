"""How far a training comes whose speed changes: nothing is lost or made up, whenever it changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.simulator.ranges.course import SpeedCourse

changes = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 3_000), st.integers(1, 9_000)), max_size=6)


def course_of(first: int, drawn: list[tuple[int, int, int]]) -> SpeedCourse:
    course = SpeedCourse(first)
    for later_ms, pause_ms, speed in drawn:
        course.change(course.since_ms + later_ms, pause_ms, speed)
    return course


def test_it_stands_still_and_goes_on_at_another_speed() -> None:
    course = SpeedCourse(1_000)
    course.change(10_000, 2_000, 3_000)
    assert [course.done_ms(at) for at in (4_000, 10_000, 11_000, 12_000, 14_000)] == [
        4_000,
        10_000,
        10_000,
        10_000,
        16_000,
    ]
    assert (course.speed, course.since_ms, course.before_ms) == (3_000, 12_000, 10_000)
    assert [course.lasts_ms(work) for work in (0, 4_000, 10_000, 10_001, 16_000)] == [0, 4_000, 10_000, 12_001, 14_000]
    assert [course.stood_ms(at) for at in (9_000, 11_000, 20_000)] == [0, 1_000, 2_000]
    with pytest.raises(ValueError, match="stands still until 12000"):
        course.change(11_999, 0, 1_000)


@given(st.integers(1, 9_000), changes, st.integers(0, 60_000))
def test_the_time_for_work_is_the_least_that_does_it(first: int, drawn: list[tuple[int, int, int]], work: int) -> None:
    course = course_of(first, drawn)
    lasts_ms = course.lasts_ms(work)
    assert course.done_ms(lasts_ms) >= work
    assert lasts_ms == 0 or course.done_ms(lasts_ms - 1) < work


@given(st.integers(1, 9_000), changes)
def test_what_was_done_stays_done(first: int, drawn: list[tuple[int, int, int]]) -> None:
    """To the thousandth of a millisecond: the sum of each speed times its time."""
    course = SpeedCourse(first)
    done, speed = 0, first
    for later_ms, pause_ms, next_speed in drawn:
        at_ms = course.since_ms + later_ms
        done += later_ms * speed
        course.change(at_ms, pause_ms, next_speed)
        speed = next_speed
        assert course.done_ms(at_ms) == course.done_ms(course.since_ms) == done // 1000 == course.before_ms
    assert course.stood_ms(course.since_ms) == sum(pause_ms for _, pause_ms, _ in drawn)
