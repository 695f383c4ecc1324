"""The company's own arithmetic, held against the rules and against the service's arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.billing import cost
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart
from providers.local.bill import amount_micros, bill_of
from providers.local.market import RULES, RentalClass
from providers.local.store import MachineRow, MachineState

PRICES = st.integers(0, 100_000_000)
UNITS = st.sampled_from([1, 1_000, 60_000, 3_600_000])
TIMES = st.integers(0, 10**13)
SPANS = st.integers(0, 10**10)


@pytest.mark.parametrize(
    ("price", "unit_ms", "span_ms", "expected"),
    [
        (2_100_000, 1_000, 0, 0),
        (2_100_000, 1_000, 1, 583),  # one started second: 583.33
        (2_100_000, 1_000, 1_000, 583),
        (2_100_000, 1_000, 1_001, 1_167),  # two: 1166.67
        (1_290_000, 60_000, 1, 21_500),  # one started minute
        (1_290_000, 60_000, 60_001, 43_000),
        (1_800, 1_000, 1_000, 1),  # half a micro-dollar rounds up
        (1_799, 1_000, 1_000, 0),
        (1_080_000, 1_000, 3_600_000, 1_080_000),
    ],
)
def test_started_units_are_charged_and_rounded_once(price: int, unit_ms: int, span_ms: int, expected: int) -> None:
    """Hand-computed bills come out to the micro-dollar."""
    assert amount_micros(price, unit_ms, 1_000_000, 1_000_000 + span_ms) == expected


@given(price=PRICES, unit_ms=UNITS, begin=TIMES, span=SPANS)
def test_both_sides_of_the_trade_compute_the_same(price: int, unit_ms: int, begin: int, span: int) -> None:
    """The company's amount is the service's, for every price, unit and span."""
    rule = BillingRule(unit_ms, BillingStart.READY)
    assert Money(amount_micros(price, unit_ms, begin, begin + span)) == cost(rule, Money(price), begin, begin + span)


@given(price=PRICES, unit_ms=UNITS, begin=TIMES, span=SPANS, more=SPANS)
def test_an_amount_covers_the_time_and_at_most_one_unit_more(
    price: int, unit_ms: int, begin: int, span: int, more: int
) -> None:
    """An amount never falls as time goes by, and lies within one unit and half a micro-dollar of exact time."""
    amount = amount_micros(price, unit_ms, begin, begin + span)
    assert amount <= amount_micros(price, unit_ms, begin, begin + span + more)
    assert 2 * amount * 3_600_000 >= 2 * price * span - 3_600_000
    assert 2 * amount * 3_600_000 <= 2 * price * (span + unit_ms) + 3_600_000


@given(price=PRICES, unit_ms=UNITS, begin=TIMES, back=SPANS)
def test_time_that_runs_backwards_is_free(price: int, unit_ms: int, begin: int, back: int) -> None:
    """A clock that was set back never makes a negative bill."""
    assert amount_micros(price, unit_ms, begin, begin - back) == 0


def machine(rental_class: RentalClass, **changes: object) -> MachineRow:
    row = MachineRow(
        machine_id="m-1",
        label="node",
        rental_class=rental_class,
        offer_id="o",
        single=False,
        gpu_type="A100",
        gpu_count=1,
        price_micros_per_hour=3_600_000,  # one micro-dollar per millisecond
        image="i",
        created_ms=1_000_000,
        boot_at_ms=1_020_000,
        expires_ms=None,
        state=MachineState.BOOTING,
        detail="",
        outage=False,
        ready_ms=None,
        ended_ms=None,
        keeper=None,
    )
    return replace(row, **changes)


@pytest.mark.parametrize("rental_class", list(RentalClass))
def test_a_machine_that_never_came_up(rental_class: RentalClass) -> None:
    """Ended while booting, it costs nothing where billing starts at ready, and its whole wait where it does not."""
    line = bill_of(machine(rental_class, state=MachineState.ENDED, ended_ms=1_090_000), 9_000_000)
    assert line.final
    if RULES[rental_class].billed_from_request:
        assert (line.from_ms, line.to_ms, line.amount_micros) == (1_000_000, 1_090_000, 90_000)
    else:
        assert (line.from_ms, line.to_ms, line.amount_micros) == (None, None, 0)


@pytest.mark.parametrize(
    ("rental_class", "begin_ms", "amount"),
    [
        (RentalClass.SERVERLESS, 1_000_000, 101_000),
        (RentalClass.MARKETPLACE, 1_020_000, 81_000),
        (RentalClass.CONVENTIONAL, 1_020_000, 120_000),
    ],
)
def test_a_whole_life_is_billed_by_its_class(rental_class: RentalClass, begin_ms: int, amount: int) -> None:
    """Started units from the class's own beginning to the end, whenever the bill is read."""
    ended = machine(rental_class, state=MachineState.ENDED, ready_ms=1_020_000, ended_ms=1_100_001)
    for now_ms in (1_100_001, 5_000_000):
        line = bill_of(ended, now_ms)
        assert (line.from_ms, line.to_ms, line.amount_micros) == (begin_ms, 1_100_001, amount)


@pytest.mark.parametrize("rental_class", list(RentalClass))
def test_a_running_machine_is_billed_until_now(rental_class: RentalClass) -> None:
    """An open bill grows with the time at which it is read, and has no end."""
    running = machine(rental_class, state=MachineState.RUNNING, ready_ms=1_020_000)
    early, late = bill_of(running, 1_030_000), bill_of(running, 1_300_000)
    assert early.to_ms is None
    assert not early.final
    assert 0 < early.amount_micros < late.amount_micros
