"""Whether a job is done by its deadline on GPUs of other speeds, and when time alone changes that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.due import Due, begins_ms, due_of, quicker_ones
from app.core.gpu_speeds import GpuSpeeds
from app.core.job_prices import entered_micros, job_micros, usual_micros
from app.core.market import Market
from app.core.model.node import SERVERFUL_TIERS, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView
from tests.core.samples import NOW_MS, SPEEDS, job, node, offer

SPEED = GpuSpeeds("a100", (("h100", 500), ("l4", 3_000)))
L4 = offer("l4", Tier.MARKETPLACE, "0.20", gpu_type="L4", startup_ms=30_000)
A100 = offer("a100", Tier.MARKETPLACE, "0.80", gpu_type="A100", startup_ms=30_000)
H100 = offer("h100", Tier.CONVENTIONAL, "2.00", gpu_type="H100", startup_ms=30_000)
HOUR_MS = 3_600_000


def due_in(time_ms: int, **changes: Any) -> JobView:
    """An hour of work on an A100, which is due in so much time."""
    values = {"deadline_ms": NOW_MS + time_ms, "total_run_ms": HOUR_MS, "speeds": SPEED}
    return job(**(values | changes))


def market(*offers: Offer) -> tuple[Market, list[int]]:
    wakes: list[int] = []
    return Market(offers or (L4, A100, H100), SERVERFUL_TIERS).at(NOW_MS, wakes), wakes


def test_an_hour_of_work_costs_what_it_takes() -> None:
    """On an L4 three hours of $0.20, on an H100 half an hour of $2; for a job that takes one type alone the price."""
    one, plain = due_in(0), due_in(0, speeds=None)
    assert [job_micros(each, one) for each in (L4, A100, H100)] == [600_000, 800_000, 1_000_000]
    assert [usual_micros(each, plain) for each in (L4, A100, H100)] == [200_000, 800_000, 2_000_000]
    assert entered_micros(replace(L4, arrival_ms=60_000), 0, HOUR_MS, SPEED) == 600_000 + 200_000 // 60
    assert job_micros(node("n", gpu_type="L4", price_per_hour=L4.price_per_hour), one) == 600_000


def test_the_cheapest_for_the_work_that_is_in_time_is_taken() -> None:
    """The L4 while its three hours and a quarter more fit; then the A100; then, of the next tier, the H100."""
    for hours, taken, passed_over in ((8, L4, None), (2, A100, L4), (1, H100, L4)):
        there, _ = market()
        choice = there.choose(due_in(hours * HOUR_MS))
        assert choice is not None
        assert (choice.offer, choice.too_slow) == (taken, passed_over)


def test_what_is_only_likely_in_time_is_better_than_what_is_late() -> None:
    """The half hour of the H100 and its start fit into 31 minutes, if it takes no longer than predicted."""
    there, _ = market()
    choice = there.choose(due_in(31 * 60_000))
    assert choice is not None
    assert choice.offer is H100


def test_who_is_late_wherever_it_goes_takes_what_costs_least() -> None:
    """Deadlines are soft: nothing is paid for one that is missed all the same."""
    there, _ = market()
    choice = there.choose(due_in(60_000))
    assert choice is not None
    assert (choice.offer, choice.too_slow) == (L4, None)


def test_of_whom_nobody_knows_how_long_it_runs_nothing_is_late() -> None:
    there, wakes = market()
    choice = there.choose(due_in(HOUR_MS, total_run_ms=None))
    assert choice is not None
    assert (choice.offer, wakes) == (L4, [])


def test_among_gpus_of_one_speed_nothing_changes() -> None:
    """Neither the choice nor when to look again."""
    there, wakes = market()
    one = due_in(HOUR_MS, speeds=None)
    assert there.choose(one) == Market((L4, A100, H100), SERVERFUL_TIERS).choose(one)
    assert wakes == []


def test_a_job_that_runs_is_asked_with_what_it_has_left() -> None:
    """An hour of work of which ten minutes are left fits on the L4."""
    there, _ = market()
    choice = there.choose(due_in(HOUR_MS), 600_000)
    assert choice is not None
    assert choice.offer is L4


def test_what_failed_the_job_is_not_taken_for_its_speed() -> None:
    there, _ = market()
    choice = there.choose(due_in(HOUR_MS, avoided_offers=frozenset({H100.key})))
    assert choice is not None
    assert choice.offer is L4  # late wherever it may go


def test_only_what_could_be_the_first_in_time_is_looked_at() -> None:
    """A crowd of alike offers is one question."""
    many = [replace(L4, offer_id=f"l4 {number}") for number in range(50)]
    assert quicker_ones([*many, A100, replace(A100, offer_id="again"), H100], SPEED) == (many[0], A100, H100)
    sooner = replace(L4, offer_id="sooner", startup_ms=1)
    assert quicker_ones([L4, sooner], SPEED) == (L4, sooner)


def test_a_job_without_speeds_or_prediction_is_not_due() -> None:
    assert due_of(due_in(1, speeds=None), NOW_MS, None) is None
    assert due_of(due_in(1, total_run_ms=None), NOW_MS, None) is None
    found = due_of(due_in(5_000, total_run_ms=None), NOW_MS, 7_000)
    assert found == Due(SPEED, 7_000, 5_000, runs=True)


dues = st.builds(
    Due,
    speeds=st.sampled_from(SPEEDS),
    left_ms=st.integers(1_000, 10**8),
    until_ms=st.integers(-(10**8), 2 * 10**8),
    runs=st.booleans(),
)
offers = st.builds(
    offer,
    st.just("x"),
    gpu_type=st.sampled_from(["A100", "H100", "T4", "mystery"]),
    startup_ms=st.integers(0, 10**6),
    arrival_ms=st.sampled_from([0, 60_000]),
)


def later(due: Due, by_ms: int) -> Due:
    left_ms = due.left_ms - by_ms if due.runs else due.left_ms
    return replace(due, left_ms=left_ms, until_ms=due.until_ms - by_ms)


@given(due=dues, one=offers, share=st.floats(0, 1))
def test_no_answer_changes_before_it_is_told(due: Due, one: Offer, share: float) -> None:
    """Until the next change, the moment before it included, both answers stay."""
    until_ms = min([*due.changes_ms(one.gpu_type, begins_ms(one)), due.left_ms - 1_000 if due.runs else 10**9])
    for by_ms in (int((until_ms - 1) * share), until_ms - 1):
        if by_ms >= 0:
            then = later(due, by_ms)
            assert then.is_sure_on(one) == due.is_sure_on(one)
            assert (then.first_in_time([one]) is None) == (due.first_in_time([one]) is None)


@given(due=dues, several=st.lists(offers, max_size=6))
def test_the_first_in_time_is_the_first_of_the_surest(due: Due, several: list[Offer]) -> None:
    found = due.first_in_time(several)
    sure = [one for one in several if due.is_sure_on(one)]
    likely = [one for one in several if due.is_in_time(one.gpu_type, one.startup_ms + one.arrival_ms)]
    assert found == next(iter(sure or likely), None)


@given(due=dues, several=st.lists(offers, max_size=6))
def test_leaving_out_what_is_never_quicker_changes_no_answer(due: Due, several: list[Offer]) -> None:
    """Of offers in order of cost, the first in time is among the quicker ones."""
    quicker = quicker_ones(several, due.speeds)
    assert due.first_in_time(quicker) == due.first_in_time(several)


@pytest.mark.parametrize("runs", [False, True])
def test_a_choice_tells_when_it_becomes_another(runs: bool) -> None:
    """The moment at which the L4 is no longer surely in time is among those at which to look again."""
    there, wakes = market()
    left_ms = HOUR_MS if runs else None
    choice = there.choose(due_in(5 * HOUR_MS), left_ms)
    assert choice is not None
    assert choice.offer is L4
    spare_ms = 5 * HOUR_MS - 30_000 - 3 * HOUR_MS * 5 // 4
    slope = 3.75 - 1 if runs else -1.0
    expected = [] if slope > 0 else [NOW_MS + spare_ms]
    assert [at for at in wakes if at == NOW_MS + spare_ms] == expected
