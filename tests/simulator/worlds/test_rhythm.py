"""What saves cost and what they keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.simulator.worlds.rhythm import NO_SAVES, Rhythm

rhythms = st.builds(Rhythm, st.integers(0, 1_000), st.integers(0, 200))
times = st.integers(0, 100_000)


@given(rhythms, times)
def test_after_the_time_that_work_lasts_it_is_done_and_not_before(rhythm: Rhythm, work_ms: int) -> None:
    lasts_ms = rhythm.lasts_ms(work_ms)
    assert rhythm.worked_ms(lasts_ms) == work_ms
    assert lasts_ms == 0 or rhythm.worked_ms(lasts_ms - 1) == work_ms - 1


@given(rhythms, times, times)
def test_more_time_never_brings_less(rhythm: Rhythm, one_ms: int, more_ms: int) -> None:
    before, after = (rhythm.worked_ms(one_ms), rhythm.safe_ms(one_ms)), one_ms + more_ms
    assert before <= (rhythm.worked_ms(after), rhythm.safe_ms(after))
    assert rhythm.worked_ms(after) - before[0] <= more_ms


@given(rhythms, times)
def test_what_is_safe_was_worked_and_less_than_one_stretch_is_not(rhythm: Rhythm, ran_ms: int) -> None:
    safe_ms, worked_ms = rhythm.safe_ms(ran_ms), rhythm.worked_ms(ran_ms)
    assert 0 <= safe_ms <= worked_ms <= ran_ms
    if rhythm.every_ms:
        assert safe_ms % rhythm.every_ms == 0
        assert worked_ms - safe_ms <= rhythm.every_ms


@pytest.mark.parametrize(
    ("ran_ms", "worked_ms", "safe_ms"), [(99, 99, 0), (100, 100, 0), (105, 100, 0), (110, 100, 100), (215, 200, 100)]
)
def test_a_save_counts_once_it_is_over(ran_ms: int, worked_ms: int, safe_ms: int) -> None:
    """A hundred of work, then ten of saving."""
    rhythm = Rhythm(100, 10)
    assert (rhythm.worked_ms(ran_ms), rhythm.safe_ms(ran_ms)) == (worked_ms, safe_ms)


def test_the_last_save_is_not_waited_for() -> None:
    assert [Rhythm(100, 10).lasts_ms(work_ms) for work_ms in (0, 1, 100, 101, 200, 201)] == [0, 1, 100, 111, 210, 221]
    assert NO_SAVES.lasts_ms(10**9) == 10**9
    assert NO_SAVES.safe_ms(10**9) == 0
