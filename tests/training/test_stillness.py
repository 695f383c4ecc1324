"""When a process of a training on several GPUs is said to hang, and when it never is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.training.elastic.stillness import JOINING_S, LEAST_S, TIMES, Doing, Presence, Stillness

PART, MEETING = Doing.PART, Doing.MEETING


def told(stillness: Stillness, doing: Doing | None, arrived: tuple[int, ...], for_s: float) -> str | None:
    """What is said when it has looked like this for so long, by a look each second."""
    said = None
    for _ in range(int(for_s) + 1):
        said = said or stillness.look(doing, arrived, 1.0)
    return said


def test_who_has_not_come_hangs() -> None:
    """All that are late are named; how long is told."""
    assert told(Stillness(), MEETING, (5, 4, 5), LEAST_S - 1) is None
    assert told(Stillness(), MEETING, (5, 4, 5), LEAST_S) == "nothing has moved for 600 s: rank 1 of 3 hangs"
    assert told(Stillness(), MEETING, (5, 4, 4), LEAST_S) == "nothing has moved for 600 s: ranks 1, 2 of 3 hang"
    assert told(Stillness(), PART, (4, 5, 5), LEAST_S) == "nothing has moved for 600 s: rank 0 of 3 hangs"


@pytest.mark.parametrize("doing", [PART, MEETING])
def test_where_nobody_is_late_none_gets_on(doing: Doing) -> None:
    """As when no numbers pass between their GPUs."""
    assert told(Stillness(), doing, (5, 5), LEAST_S) == "nothing has moved for 600 s: none of the 2 processes gets on"


def test_the_first_process_saves_for_as_long_as_it_takes() -> None:
    """Or exports, or waits for a disk: the others have long come to the next round. The wait begins anew after it."""
    stillness = Stillness()
    assert told(stillness, None, (5, 6, 6), 100 * LEAST_S) is None
    assert told(stillness, PART, (5, 6, 6), LEAST_S - 1) is None
    assert told(stillness, PART, (5, 6, 6), 1) is not None


def test_long_parts_are_waited_for_longer() -> None:
    """So many times as the longest before; who is slower than ever is only slow."""
    stillness = Stillness()
    assert told(stillness, PART, (1, 1), 120) is None
    assert told(stillness, MEETING, (2, 1), TIMES * 120 - 1) is None
    assert told(stillness, MEETING, (2, 1), 1) == (
        "nothing has moved for 2400 s, where 120 s were the longest before: rank 1 of 2 hangs"
    )


def test_who_loads_a_model_has_longer() -> None:
    """And what that took says nothing of a part."""
    stillness = Stillness()
    assert told(stillness, MEETING, (1, 0), JOINING_S - 1) is None
    assert told(stillness, MEETING, (2, 1), LEAST_S) == "nothing has moved for 600 s: rank 1 of 2 hangs"
    assert told(Stillness(), MEETING, (1, 0), JOINING_S) == "nothing has moved for 1800 s: rank 1 of 2 hangs"


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, LEAST_S * 0.9)), max_size=40))
def test_nothing_that_moves_within_its_time_is_given_up(moves: list[tuple[int, float]]) -> None:
    """Whoever moves, and however unevenly."""
    stillness, arrived = Stillness(), [1, 1, 1]
    for rank, after_s in moves:
        for doing in (PART, MEETING):
            assert stillness.look(doing, arrived, 1.0) is None
            assert stillness.look(doing, arrived, after_s) is None
        arrived[rank] += 1


def test_all_see_how_often_each_has_come(tmp_path: Path) -> None:
    """What it does is its own to know. A failure in the middle leaves nothing behind."""
    first, second = (Presence(tmp_path / "presence", own, 2) for own in range(2))
    with first.meeting():
        assert (first.doing, second.doing) == (MEETING, None)
    with second.working():
        assert second.doing is PART
    with pytest.raises(ValueError, match="lost"), second.meeting():
        raise ValueError("lost")
    with second.meeting():
        pass
    assert first.arrived == second.arrived == (1, 2)
    assert first.doing is None and second.doing is None
