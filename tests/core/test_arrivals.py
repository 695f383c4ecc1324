"""What it takes to begin on a fresh machine: how it is learned, and where it changes what is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.arrivals import MOST_ARRIVAL_MS, Arrivals, Arrived, with_arrivals
from app.core.job_prices import OWN_SAVES_MS, entered_micros, job_micros, staying_ms, stretch_ms
from app.core.machine_lives import weighed_micros
from app.core.market import Market
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.policies.weighing import break_even_ms, is_patient, most_wait_ms, starts_by_ms
from tests.core.samples import CONFIG, MARKET, NOW_MS, SERVERLESS, job, node

HOUR_MS = 3_600_000
TIERS = (Tier.MARKETPLACE, Tier.CONVENTIONAL)


def arrived(count: float, took_ms: float, *, project: str = "proj_a", micros: float = 0.0) -> Arrived:
    return Arrived(MARKET.provider, MARKET.tier, project, count, count * took_ms, count * micros)


def told(*seen: Arrived) -> tuple[int, int]:
    offer = Arrivals(seen).told_of(MARKET)
    return offer.arrival_ms, offer.arrival_micros


def test_nobody_has_arrived_and_nothing_is_said() -> None:
    assert told() == (0, 0)
    assert Arrivals([]).told_of(MARKET) is MARKET


def test_many_arrivals_speak_for_themselves() -> None:
    took_ms, micros = told(arrived(99, 300_000, micros=500_000))
    assert took_ms == pytest.approx(300_000, rel=0.05)
    assert micros == pytest.approx(500_000 * MARKET.gpu_count, rel=0.05)


def test_one_project_alone_makes_no_company_look_worse() -> None:
    """It installs half of the internet on every machine; everybody else begins within seconds."""
    both = told(arrived(50, 10_000), arrived(1_000, 3_000_000, project="proj_b"))
    assert both == told(arrived(50, 10_000))


@given(st.floats(1, 1e6), st.floats(0, 1e15))
def test_no_arrival_is_believed_to_take_for_ever(count: float, took_ms: float) -> None:
    assert 0 <= told(arrived(count, took_ms))[0] <= MOST_ARRIVAL_MS * 1.05


def test_nodes_are_told_what_offers_of_their_kind_say() -> None:
    known = replace(MARKET, arrival_ms=1_000, arrival_micros=7 * MARKET.gpu_count)
    one = node("node_a", provider=MARKET.provider, tier=MARKET.tier)
    (seen,) = with_arrivals([one], [known])
    assert (seen.arrival_ms, seen.arrival_micros) == (1_000, 7 * one.gpu_count)
    assert with_arrivals([seen], []) == (one,)


@given(st.integers(0, 10 * HOUR_MS), st.integers(0, HOUR_MS), st.integers(0, 10_000_000))
def test_without_failures_and_arrivals_every_job_pays_the_price(run_ms: int, took_ms: int, micros: int) -> None:
    """And with an arrival it is never less; the longer the job stays, the less of it an hour bears."""
    price = MARKET.price_per_hour.micros
    assert entered_micros(MARKET, 0, staying_ms(job(total_run_ms=run_ms))) == price
    known = replace(MARKET, arrival_ms=took_ms, arrival_micros=micros)
    short, long = (entered_micros(known, 0, staying_ms(job(total_run_ms=one))) for one in (run_ms, 4 * run_ms))
    assert price == weighed_micros(known) <= long <= short


def test_a_job_that_saves_seldom_pays_more_where_machines_fail() -> None:
    frail = replace(MARKET, mean_life_ms=2 * HOUR_MS)
    saves = job()
    by_itself = job(saves=False, checkpoint_step=1)
    never = job(saves=False, never_saves=True, total_run_ms=8 * HOUR_MS)
    assert (stretch_ms(saves), stretch_ms(by_itself)) == (0, OWN_SAVES_MS)
    assert job_micros(frail, saves) < job_micros(frail, by_itself) < job_micros(frail, never)
    assert job_micros(MARKET, saves) == job_micros(MARKET, by_itself) == job_micros(MARKET, never)


def test_a_job_that_never_saves_is_sent_where_machines_last() -> None:
    """For one that saves every few minutes the frail machines are still the cheaper ones."""
    frail = replace(MARKET, mean_life_ms=2 * HOUR_MS, price_per_hour=Money(1_000_000))
    lasts = replace(frail, tier=Tier.CONVENTIONAL, offer_id="lasts", mean_life_ms=0, price_per_hour=Money(1_500_000))
    market = Market((frail, lasts), TIERS)
    never = job(saves=False, never_saves=True, total_run_ms=8 * HOUR_MS)
    found = [market.choose(one) for one in (job(), never)]
    assert [one and one.offer for one in found] == [frail, lasts]


def test_a_move_has_to_earn_the_arrival() -> None:
    before = break_even_ms(CONFIG, 4_000_000, 2_000_000)
    after = break_even_ms(CONFIG, 4_000_000, 2_000_000, 0, 2_000_000 * HOUR_MS)
    assert before is not None
    assert after is not None
    assert after == pytest.approx(before + CONFIG.rules.move_gain * HOUR_MS)


def test_a_job_waits_longer_where_serverless_itself_takes_long_to_begin() -> None:
    slow = replace(SERVERLESS, arrival_ms=150_000)
    one = job(submitted_ms=NOW_MS, deadline_ms=NOW_MS + 1_000 * HOUR_MS, total_run_ms=HOUR_MS, start="auto")
    usual = most_wait_ms(CONFIG, one, NOW_MS, SERVERLESS)
    assert most_wait_ms(CONFIG, one, NOW_MS, slow) == usual + 300_000


def test_a_deadline_counts_with_the_arrival() -> None:
    """Half an hour of work and 35 minutes: in time after an arrival of four minutes, and not after one of six."""
    one = job(deadline_ms=NOW_MS + 35 * 60_000)
    four, six = (replace(SERVERLESS, startup_ms=0, arrival_ms=minutes * 60_000) for minutes in (4, 6))
    assert starts_by_ms(one, HOUR_MS // 2, four, NOW_MS) is not None
    assert starts_by_ms(one, HOUR_MS // 2, six, NOW_MS) is None


@pytest.mark.parametrize(("arrival_ms", "waits"), [(0, False), (150_000, True)])
def test_a_short_job_waits_where_that_saves_more_than_it_is_worth(arrival_ms: int, waits: bool) -> None:
    """Twenty minutes of work, not worth the arrival of a move: where beginning on serverless is dear it waits."""
    dear = replace(SERVERLESS, price_per_hour=Money(4_000_000), arrival_ms=arrival_ms)
    fresh = replace(MARKET, price_per_hour=Money(1_000_000), startup_ms=250_000, arrival_ms=100_000)
    one = job(submitted_ms=NOW_MS, deadline_ms=NOW_MS + 100 * HOUR_MS, total_run_ms=HOUR_MS // 3, start="auto")
    assert is_patient(CONFIG, one, HOUR_MS // 3, dear, fresh, NOW_MS) is waits
