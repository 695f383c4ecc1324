"""Start-up times, markets and bills of the emulators: the published figures, and nothing left to luck."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.emulators.market import ANYWHERE, EmulatedMarket, Good
from providers.emulators.meter import FROM_REQUEST, LAMBDA_RULE, VAST_RULE, Rule, ledger, line_of
from providers.emulators.rows import Interval, MachineRow, MachineState, Then
from providers.emulators.startup import LAMBDA, MODAL, VAST, Startup, StartupTimes

HOUR_MS = 3_600_000
A100 = Good("A100", 380_000, 1_080_000, 1_660_000, supply=50, supply_swing=0.4, empty_ppm=100_000)
LIST = Good("list", 1_290_000, 1_290_000, 1_290_000, supply=4, places=("east", "west"))


# -- start-up


@pytest.mark.parametrize("published", [MODAL, VAST, LAMBDA], ids=["modal", "vast", "lambda"])
def test_starts_have_the_published_mean_and_deviation(published: Startup) -> None:
    """Without tails, thousands of draws show the published mean and standard deviation."""
    times = StartupTimes(published, seed=5, speed=1, tails=False)
    draws = [drawn for number in range(4_000) if (drawn := times.boot_ms(number)) is not None]
    assert len(draws) == 4_000
    assert statistics.mean(draws) == pytest.approx(published.mean_ms, rel=0.03)
    assert statistics.stdev(draws) == pytest.approx(published.sd_ms, rel=0.1)


@pytest.mark.parametrize("published", [MODAL, VAST, LAMBDA], ids=["modal", "vast", "lambda"])
def test_tails_are_as_heavy_as_reported(published: Startup) -> None:
    """As many starts as reported are slow, and as many never come up."""
    times = StartupTimes(published, seed=5, speed=1)
    draws = [times.boot_ms(number) for number in range(20_000)]
    never = draws.count(None) / len(draws)
    slow = sum(drawn is not None and drawn >= published.slow_ms for drawn in draws) / len(draws)
    assert never == pytest.approx(published.never_ppm / 1e6, rel=0.35)
    assert slow == pytest.approx(published.slow_ppm / 1e6, rel=0.35)


def test_starts_scale_and_repeat() -> None:
    """The same seed and number give the same time, scaled; speed 0 is none at all, and never a hang."""
    full, tenth, none = (StartupTimes(VAST, seed=7, speed=speed) for speed in (1, 0.1, 0))
    for number in range(200):
        drawn = full.boot_ms(number)
        assert drawn == full.boot_ms(number)
        assert none.boot_ms(number) == 0
        scaled = tenth.boot_ms(number)
        if drawn is None or scaled is None:
            assert drawn is scaled
        else:
            assert scaled == pytest.approx(drawn / 10, abs=1)
    other = StartupTimes(VAST, seed=8, speed=1)
    assert [other.boot_ms(n) for n in range(9)] != [full.boot_ms(n) for n in range(9)]
    assert full.expected_ms() == VAST.mean_ms
    assert tenth.expected_ms(mean_ms=900_000) == 90_000


@pytest.mark.parametrize("speed", [-1, float("nan"), float("inf")])
def test_a_speed_that_makes_no_sense_is_refused(speed: float) -> None:
    """A negative or endless speed is refused with an example."""
    with pytest.raises(ValueError, match=r"e\.g\. 0\.1"):
        StartupTimes(MODAL, seed=1, speed=speed)


# -- the market


def test_prices_stay_between_lowest_and_highest_around_the_median() -> None:
    """Over weeks prices of hosts stay in the published range, half of them about below the median, and they move."""
    market = EmulatedMarket([A100, LIST], seed=2, speed=1, origin_ms=0)
    prices = [
        market.price_micros("A100", step * 10 * 60_000, host) for step in range(0, 24 * 6 * 30, 5) for host in range(5)
    ]
    assert min(prices) >= A100.lowest_micros
    assert max(prices) <= A100.highest_micros
    assert statistics.median(prices) == pytest.approx(A100.median_micros, rel=0.15)
    days = [market.price_micros("A100", day * 24 * HOUR_MS) for day in range(40)]
    assert max(max(days[i], days[i + 1]) / min(days[i], days[i + 1]) for i in range(39)) > 1.3
    assert {market.price_micros("list", day * 24 * HOUR_MS) for day in range(40)} == {1_290_000}


def test_a_market_repeats_itself_from_its_seed() -> None:
    """Two markets of one seed agree about every moment; another seed makes another market; speed 0 stands still."""
    moments = range(0, 48 * HOUR_MS, HOUR_MS // 3)

    def told(market: EmulatedMarket) -> list[tuple[int, int]]:
        return [(market.price_micros("A100", at), market.supply("A100", at)) for at in moments]

    assert told(EmulatedMarket([A100], seed=1, speed=1, origin_ms=0)) == told(
        EmulatedMarket([A100], seed=1, speed=1, origin_ms=0)
    )
    assert told(EmulatedMarket([A100], seed=1, speed=1, origin_ms=0)) != told(
        EmulatedMarket([A100], seed=2, speed=1, origin_ms=0)
    )
    assert len(set(told(EmulatedMarket([A100], seed=1, speed=0, origin_ms=0)))) == 1
    fast = EmulatedMarket([A100], seed=1, speed=0.1, origin_ms=0)
    slow = EmulatedMarket([A100], seed=1, speed=1, origin_ms=0)
    assert [fast.supply("A100", at // 10) for at in moments] == [slow.supply("A100", at) for at in moments]


def test_supply_is_per_place_and_may_be_none() -> None:
    """Each place has its own; elsewhere there is none; what can be empty is empty for whole spells."""
    market = EmulatedMarket([A100, LIST], seed=2, speed=1, origin_ms=0)
    assert [market.supply("list", 0, place) for place in ("east", "west", "moon", ANYWHERE)] == [4, 4, 0, 0]
    supply = [market.supply("A100", hour * HOUR_MS) for hour in range(24 * 60)]
    assert 0.03 < supply.count(0) / len(supply) < 0.25
    assert max(supply) <= 50
    assert min(each for each in supply if each) >= 29


def test_a_script_overrides_from_its_moment_on_and_survives() -> None:
    """What is set holds from then on, here or everywhere, until given back; it can be stored and restored."""
    market = EmulatedMarket([A100, LIST], seed=2, speed=1, origin_ms=0, listing_lag_ms=5_000)
    before = market.price_micros("A100", 10_000)
    market.set_price("A100", 5, 10_000)
    market.set_supply("list", 9, 10_000, "west")
    assert market.price_micros("A100", 9_999) == before
    assert market.price_micros("A100", 10_000) == 5
    assert market.listed_price_micros("A100", 14_999) == before
    assert market.listed_price_micros("A100", 15_000) == 5
    assert [market.supply("list", 10_000, place) for place in ("east", "west")] == [4, 9]
    market.empty(20_000)
    assert [market.supply("list", 20_000, place) for place in ("east", "west")] == [0, 0]
    market.set_supply("list", 2, 20_000, "east")
    assert [market.supply("list", 20_000, place) for place in ("east", "west")] == [2, 0]
    assert market.supply("A100", 20_000) == 0
    again = EmulatedMarket([A100, LIST], seed=2, speed=1, origin_ms=0, listing_lag_ms=5_000)
    again.restore(json.loads(json.dumps(market.script())) | {"not for rent": {}})
    assert json.dumps(again.script()) == json.dumps(market.script())
    market.set_supply("list", None, 30_000, "west")
    assert market.supply("list", 30_000, "west") == 4
    again.reset()
    assert again.price_micros("A100", 20_000) == EmulatedMarket([A100], seed=2, speed=1, origin_ms=0).price_micros(
        "A100", 1
    )
    with pytest.raises(KeyError):
        market.set_price("not for rent", 1, 0)


# -- the bill


def machine(*intervals: Interval, ended_ms: int | None = None, storage: int = 0) -> MachineRow:
    """A machine that has lived through this."""
    state = MachineState.ENDED if ended_ms is not None else intervals[-1].state
    return MachineRow(
        number=1, ref="m", label="ours", state=state, cause=None, detail="", exit_code=None, when_it_exits=Then.END,
        price_micros_per_hour=intervals[-1].price_micros_per_hour, storage_micros_per_hour=storage,
        created_ms=intervals[0].from_ms, boot_at_ms=None, ready_ms=None, stopped_ms=None, ended_ms=ended_ms,
        deadline_ms=None, lifetime_ms=None, at_deadline=Then.END, deadline_cause=None, ending=None, facts={},
        keeper=None, intervals=intervals,
    )  # fmt: skip


def stretch(state: str, from_ms: int, to_ms: int | None, price: int = 3_600_000) -> Interval:
    return Interval(MachineState(state), price, from_ms, to_ms)


LIFE = (stretch("booting", 0, 1_500), stretch("running", 1_500, 62_000), stretch("stopped", 62_000, 100_000))


@pytest.mark.parametrize(
    ("rule", "billed_ms"),
    [
        (Rule(1_000), 61_000),  # 60.5 s
        (Rule(1_000, FROM_REQUEST), 62_000),
        (LAMBDA_RULE, 120_000),
        (Rule(1_000, minimum_ms=300_000), 300_000),
        (Rule(1_000, frozenset({MachineState.STOPPED})), 38_000),
    ],
)
def test_started_units_of_the_billed_states_are_charged(rule: Rule, billed_ms: int) -> None:
    """Each company charges its own states, in its own units; a price of a dollar per second makes it plain."""
    line = line_of(machine(*LIFE), rule, now_ms=100_000)
    assert line.billed_ms == billed_ms
    assert line.amount_micros == billed_ms
    assert not line.final


def test_what_never_ran_costs_its_storage_only() -> None:
    """A machine without a billed stretch has no times; storage is charged from its beginning to its end."""
    never = machine(stretch("booting", 1_000, 3_601_000), ended_ms=3_601_000, storage=7)
    line = line_of(never, VAST_RULE, now_ms=9_999_999)
    assert (line.from_ms, line.to_ms, line.final, line.amount_micros) == (None, None, True, 7)
    stopped = machine(*LIFE[:2], stretch("stopped", 62_000, None), storage=3_600_000)
    assert line_of(stopped, VAST_RULE, now_ms=162_000).amount_micros == 61_000 + 162_000


def test_a_price_that_changed_is_charged_from_then_on() -> None:
    """Two prices in one stretch are charged each for its time; one price in two intervals counts once."""
    twice = machine(stretch("running", 0, 1_500), stretch("running", 1_500, 3_000))
    assert line_of(twice, VAST_RULE, now_ms=3_000).billed_ms == 3_000
    dearer = machine(stretch("running", 0, 2_000), stretch("running", 2_000, 3_000, 7_200_000))
    assert line_of(dearer, VAST_RULE, now_ms=3_000).amount_micros == 2_000 + 2_000


def test_orphans_are_what_nobody_owns() -> None:
    """The ledger's total is the sum of its lines; what is not owned is summed apart, in dollars too."""
    rows = [machine(stretch("running", 0, 10_000), ended_ms=10_000), machine(stretch("running", 0, None))]
    rows = [replace(row, ref=ref) for row, ref in zip(rows, ("a", "b"), strict=True)]
    told: dict[str, Any] = ledger(rows, VAST_RULE, now_ms=1_250_000, owned=["a"])
    assert told["total_micros"] == 10_000 + 1_250_000
    assert (told["orphans"], told["live_orphans"]) == (["b"], ["b"])
    assert (told["orphan_cost_micros"], told["orphan_cost_usd"]) == (1_250_000, "1.250000")
    assert "orphans" not in ledger(rows, VAST_RULE, now_ms=1_250_000)


@given(
    price=st.integers(0, 10_000_000),
    cuts=st.lists(st.integers(1, 10_000_000), min_size=1, max_size=6),
    unit_ms=st.sampled_from([1_000, 60_000]),
)
def test_a_bill_is_exact_to_half_a_micro_dollar(price: int, cuts: list[int], unit_ms: int) -> None:
    """Whatever the life, the amount is the exact fraction of started units, rounded once."""
    at_ms, intervals, units = 0, [], 0
    for index, length_ms in enumerate(cuts):
        state = "running" if index % 2 == 0 else "stopped"
        intervals.append(stretch(state, at_ms, at_ms + length_ms, price))
        at_ms += length_ms
        units += -(-length_ms // unit_ms) if state == "running" else 0
    line = line_of(machine(*intervals, ended_ms=at_ms), Rule(unit_ms), now_ms=at_ms)
    exact = Fraction(units * unit_ms * price, HOUR_MS)
    assert abs(line.amount_micros - exact) <= Fraction(1, 2)
    assert line.billed_ms == units * unit_ms
