"""What pools give out: nothing more when their hours are nearly over, and never more than their limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.pool import HostGpu, OwnHost, Pool
from app.core.pools import CLOSING_MS, closes_in_ms, ends_ms, governed, is_open, offers_of, read_hours
from tests.core.samples import offer

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
NIGHTS = Pool("nights", hours=read_hours("20:00-08:00"))
HOST = OwnHost("host_a", "nights", 8, 2**36, (HostGpu(0, "A100", 80 * 2**30),))


def at(hour: int, minute: int = 0) -> int:
    return 10 * 24 * HOUR_MS + hour * HOUR_MS + minute * MINUTE_MS


@pytest.mark.parametrize(
    ("now_ms", "many"),
    [(at(19, 59), 0), (at(20), 1), (at(7, 39), 1), (at(7, 40), 0), (at(7, 59), 0), (at(8), 0), (at(12), 0)],
)
def test_nothing_is_given_in_the_last_minutes(now_ms: int, many: int) -> None:
    """A job that leaves a machine as its hours end would else be sent to the GPU beside it, again and again."""
    assert len(offers_of([NIGHTS], [HOST], now_ms)) == many
    queued = Pool("nights", launcher="slurm", hours=NIGHTS.hours)
    listed: list[Offer] = [offer("a", Tier.OWN, "0", region="nights", provider="slurm")]
    assert len(governed(listed, [queued], {}, now_ms)) == many


def test_what_runs_there_may_run_on_until_the_end() -> None:
    assert is_open(NIGHTS, at(8) - CLOSING_MS) and is_open(NIGHTS, at(7, 59))


def test_a_pool_without_hours_never_closes() -> None:
    assert len(offers_of([Pool("nights")], [HOST], at(7, 59))) == 1


@pytest.mark.parametrize(
    ("text", "now_ms", "left_hours"),
    [
        ("00:00-24:00", at(23), None),
        ("12:00-24:00, 00:00-12:00", at(23), None),
        ("20:00-24:00, 00:00-08:00", at(23), 9),
        ("mon-fri 20:00-08:00, sat-sun 00:00-24:00", at(23) - 24 * HOUR_MS, 25),  # a Saturday
        ("20:00-08:00", at(23), 9),
        ("08:00-20:00", at(19), 1),
    ],
)
def test_hours_that_follow_each_other_are_one(text: str, now_ms: int, left_hours: int | None) -> None:
    """At midnight nothing closes that goes on after it."""
    pool = Pool("p", hours=read_hours(text))
    left_ms = None if left_hours is None else left_hours * HOUR_MS
    assert is_open(pool, now_ms)
    assert closes_in_ms(pool, now_ms) == left_ms
    assert ends_ms(pool, now_ms) == (None if left_ms is None else now_ms + left_ms)


def test_a_limit_counts_what_hosts_that_drain_have_given_out() -> None:
    """Else an offer would be made that is refused whenever it is taken, without end."""
    pool = Pool("p", most_gpus=4)
    gpus = tuple(HostGpu(index, "A100", 80 * 2**30) for index in range(4))
    drains = OwnHost("host_a", "p", 32, 2**36, gpus, taken=(0, 1, 2, 3), is_open=False)
    free = OwnHost("host_b", "p", 32, 2**36, gpus)
    assert offers_of([pool], [drains, free], 0) == []
    assert [one.gpu_count for one in offers_of([pool], [replace(drains, taken=(0, 1)), free], 0)] == [1, 2]
