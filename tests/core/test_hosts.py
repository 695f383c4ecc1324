"""How long hosts that failed are left alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.hosts import COUNTS_FOR_MS, HALF_LIFE_MS, HostFailure, barred_hosts

NOW_MS = 1_795_252_000_000
HOUR_MS = 3_600_000


def _failures(*ages_ms: int, host: str = "7") -> list[HostFailure]:
    return [HostFailure(host, str(number), NOW_MS - age_ms) for number, age_ms in enumerate(ages_ms)]


def _bars(failures: list[HostFailure], at_ms: int) -> bool:
    return bool(barred_hosts(failures, at_ms))


def test_a_failure_bars_a_host_for_six_hours() -> None:
    """One failure counts for six hours; then the host gets another chance. Others are not concerned."""
    failures = _failures(0)
    assert _bars(failures, NOW_MS + 6 * HOUR_MS - 1)
    assert not _bars(failures, NOW_MS + 6 * HOUR_MS + 1)
    assert [barred.host for barred in barred_hosts([*failures, *_failures(7 * HOUR_MS, host="8")], NOW_MS)] == ["7"]


def test_a_host_that_fails_again_and_again_stays_away_longer() -> None:
    """Each further failure adds to what is left of the earlier ones: four at once bar it for eighteen hours."""
    failures = _failures(0, 0, 0, 0)
    (barred,) = barred_hosts(failures, NOW_MS)
    assert (barred.failures, barred.until_ms) == (4, NOW_MS + 18 * HOUR_MS)
    assert _bars(failures, NOW_MS + 18 * HOUR_MS - 1)
    assert not _bars(failures, NOW_MS + 18 * HOUR_MS + 1)


@given(st.lists(st.integers(0, COUNTS_FOR_MS), min_size=1, max_size=6), st.integers(1, HOUR_MS))
def test_what_is_told_of_the_end_is_when_it_ends(ages_ms: list[int], beside_ms: int) -> None:
    """Barred before the moment that is told, and not after it, however many failures there are of whatever age."""
    failures = _failures(*ages_ms)
    for barred in barred_hosts(failures, NOW_MS):
        assert barred.until_ms >= NOW_MS
        assert _bars(failures, max(NOW_MS, barred.until_ms - beside_ms))
        assert not _bars(failures, barred.until_ms + beside_ms)


@given(st.lists(st.integers(0, COUNTS_FOR_MS), max_size=6), st.integers(0, COUNTS_FOR_MS))
def test_another_failure_never_helps(ages_ms: list[int], more_ms: int) -> None:
    """A host with one failure more is left alone for at least as long."""
    before, after = (barred_hosts(_failures(*ages), NOW_MS) for ages in (ages_ms, [*ages_ms, more_ms]))
    assert not before or after[0].until_ms >= before[0].until_ms


def test_what_is_forgotten_bars_nobody() -> None:
    """Twenty failures that are old enough to be deleted do not bar a host by themselves, nor does a clock that is late
    count one as more than it is."""
    assert not _bars(_failures(*[COUNTS_FOR_MS] * 20), NOW_MS)
    (barred,) = barred_hosts(_failures(-HOUR_MS), NOW_MS)
    assert barred.until_ms == NOW_MS + HALF_LIFE_MS
