"""Billing: what an interval costs, and who pays for which part of it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.core.billing import (
    LedgerLine,
    Meter,
    MeterReading,
    Occupancy,
    Payer,
    accrued,
    apportion,
    cost,
    serverless_equivalent,
    split,
)
from app.core.model.money import Money, total
from app.core.model.node import BillingRule, BillingStart

SECOND = BillingRule(unit_ms=1_000, starts=BillingStart.REQUEST)
MINUTE = BillingRule(unit_ms=60_000, starts=BillingStart.READY)
SECOND_MIN_60 = BillingRule(unit_ms=1_000, starts=BillingStart.READY, minimum_ms=60_000)
ONE_DOLLAR = Money.usd("3.60")  # per hour: 1000 micro-dollars a second

rules = st.builds(
    BillingRule,
    unit_ms=st.sampled_from([1, 1_000, 60_000, 3_600_000]),
    starts=st.sampled_from(BillingStart),
    minimum_ms=st.sampled_from([0, 0, 1, 10_000, 60_000, 90_500]),
)
prices = st.integers(0, 50_000_000).map(Money)
instants = st.integers(0, 20_000_000)
tokens = st.sampled_from([0, 0, 1, 7, 10**6]) | st.integers(0, 10**12)


@pytest.mark.parametrize(
    ("rule", "elapsed_ms", "micros"),
    [
        (SECOND, 0, 0),
        (SECOND, 1, 1_000),
        (SECOND, 1_000, 1_000),
        (SECOND, 1_001, 2_000),
        (MINUTE, 1, 60_000),
        (MINUTE, 60_000, 60_000),
        (MINUTE, 61_000, 120_000),
        (SECOND_MIN_60, 1, 60_000),
        (SECOND_MIN_60, 60_000, 60_000),
        (SECOND_MIN_60, 60_001, 61_000),
        (replace(MINUTE, minimum_ms=61_000), 1, 120_000),
    ],
)
def test_cost_of_started_units(rule: BillingRule, elapsed_ms: int, micros: int) -> None:
    """Started units are paid whole, and the minimum from the first millisecond on."""
    assert cost(rule, ONE_DOLLAR, 5_000, 5_000 + elapsed_ms) == Money(micros)


def test_cost_is_rounded_half_up_once() -> None:
    """Half a micro-dollar becomes a whole one, and rounding happens on the sum, not per unit."""
    assert cost(SECOND, Money(1_800), 0, 1_000) == Money(1)  # 0.5
    assert cost(SECOND, Money(1_799), 0, 1_000) == Money(0)
    assert cost(SECOND, Money(1_800), 0, 3_000) == Money(2)  # 1.5, where three roundings would make 3


def test_cost_of_nothing() -> None:
    """An interval that ends before it begins costs nothing, minimum or not."""
    assert cost(SECOND_MIN_60, ONE_DOLLAR, 10, 10) == Money(0)
    assert cost(SECOND_MIN_60, ONE_DOLLAR, 10, 5) == Money(0)


@given(rules, prices, instants, instants, instants)
def test_cost_is_monotone_and_near(rule: BillingRule, price: Money, start: int, one: int, other: int) -> None:
    """A longer interval never costs less, and the cost is within half a micro-dollar of whole units at the price."""
    shorter, longer = sorted([one, other])
    assert cost(rule, price, start, shorter) <= cost(rule, price, start, longer)
    assert accrued(price, start, shorter) <= accrued(price, start, longer)
    assert accrued(price, start, longer) <= cost(rule, price, start, longer)
    elapsed = longer - start
    assume(elapsed > 0)
    exact = Fraction(price.micros * rule.unit_ms * -(-max(elapsed, rule.minimum_ms) // rule.unit_ms), 3_600_000)
    assert abs(cost(rule, price, start, longer).micros - exact) <= Fraction(1, 2)


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**7), min_size=1, max_size=6))
def test_apportion_is_exact_and_fair(amount: int, weights: list[int]) -> None:
    """Shares add up to the amount, each is within one of its exact share, and nothing goes to no weight."""
    assume(sum(weights) > 0)
    parts = apportion(amount, weights)
    assert sum(parts) == amount
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - Fraction(amount * weight, sum(weights))) < 1
        assert part == 0 or weight > 0


def test_apportion_gives_the_rest_to_the_largest_remainder() -> None:
    """What floors leave over goes to the largest remainders first, and to the earlier place on a tie."""
    assert apportion(10, [6, 3, 1]) == [6, 3, 1]
    assert apportion(5, [3, 3, 3]) == [2, 2, 1]
    assert apportion(1, [1, 2]) == [0, 1]


@pytest.mark.parametrize("weights", [[], [0, 0], [2, -1]])
def test_apportion_refuses_senseless_weights(weights: list[int]) -> None:
    """Weights that say nothing about the split are an error, not a guess."""
    with pytest.raises(ValueError, match=r"weights"):
        apportion(1, weights)


def meter(**changes: object) -> Meter:
    values = {
        "rule": SECOND,
        "price_per_hour": ONE_DOLLAR,
        "gpu_count": 1,
        "billed_from_ms": 0,
        "ready_ms": 10_000,
        "rented_for_job_id": "job_a",
    }
    return Meter(**(values | changes))  # type: ignore[arg-type]  # names and kinds by the callers


def line(payer: Payer, from_ms: int, to_ms: int, micros: int, run_id: str | None = None) -> LedgerLine:
    job_id = {"run_a": "job_a", "run_b": "job_b", None: "job_a" if payer is Payer.BOOT else None}[run_id]
    return LedgerLine(payer, run_id, job_id, from_ms, to_ms, Money(micros))


def test_boot_run_idle() -> None:
    """A node's life is cut into boot (paid by the job it was rented for), run, and idle."""
    reading = split(meter(), [Occupancy("run_a", "job_a", 1, 12_000, 30_000)], until_ms=31_500, final=True)
    assert reading.lines == (
        line(Payer.BOOT, 0, 10_000, 10_000),
        line(Payer.IDLE, 10_000, 12_000, 2_000),
        line(Payer.RUN, 12_000, 30_000, 18_000, "run_a"),
        line(Payer.IDLE, 30_000, 31_500, 2_000),  # the started second is paid whole
    )
    assert reading.metered == Money(32_000)


def test_boot_outranks_an_allocation_made_before_ready() -> None:
    """A serverless run is allocated when its node is requested; until the node is ready its time is boot."""
    reading = split(meter(), [Occupancy("run_a", "job_a", 1, 0)], until_ms=15_000)
    assert reading.lines == (line(Payer.BOOT, 0, 10_000, 10_000), line(Payer.RUN, 10_000, 15_000, 5_000, "run_a"))


def test_never_ready_is_all_boot() -> None:
    """A machine that never called home is paid for by the job it was rented for; an owner-less one by nobody's job."""
    reading = split(meter(ready_ms=None), [], until_ms=5_000, final=True)
    assert reading.lines == (line(Payer.BOOT, 0, 5_000, 5_000),)
    ownerless = split(meter(ready_ms=None, rented_for_job_id=None), [], until_ms=5_000)
    assert [found.job_id for found in ownerless.lines] == [None]


def test_runs_on_one_node_share_by_gpus() -> None:
    """Two runs on a node of 4 GPUs pay by GPUs held, and the free GPU is idle."""
    held = [Occupancy("run_b", "job_b", 1, 10_000), Occupancy("run_a", "job_a", 2, 10_000)]
    reading = split(meter(gpu_count=4, metered_until_ms=10_000, metered=Money(10_000)), held, until_ms=14_000)
    assert reading.lines == (
        line(Payer.RUN, 10_000, 14_000, 2_000, "run_a"),
        line(Payer.RUN, 10_000, 14_000, 1_000, "run_b"),
        line(Payer.IDLE, 10_000, 14_000, 1_000),
    )


def pair(tokens_a: int, tokens_b: int, *, until_ms: int | None = None) -> list[Occupancy]:
    """A lead on both GPUs of its node, and its companion on the same; the lead ends at `until_ms`."""
    return [
        Occupancy("run_a", "job_a", 2, 0, until_ms, tokens=tokens_a),
        Occupancy("run_b", "job_b", 2, 0, companion_of="run_a", tokens=tokens_b),
    ]


@pytest.mark.parametrize(
    ("tokens", "micros"),
    [
        ((300, 100), {"run_a": 7_500, "run_b": 2_500}),
        ((0, 0), {"run_a": 5_000, "run_b": 5_000}),
        ((0, 7), {"run_b": 10_000}),
        ((2, 1), {"run_a": 6_667, "run_b": 3_333}),
    ],
    ids=["by tokens", "no tokens yet", "one stands still", "thirds"],
)
def test_runs_of_one_process_share_its_gpus_by_tokens(tokens: tuple[int, int], micros: dict[str, int]) -> None:
    """A lead and its companion pay for the same GPUs once, each by what it has processed; equally before any has."""
    reading = split(meter(ready_ms=0, gpu_count=2), pair(*tokens), until_ms=10_000)
    assert {found.run_id: found.amount.micros for found in reading.lines} == micros


def test_who_is_left_of_a_pair_pays_for_all() -> None:
    """From the lead's end on, its companion is a run like any other; and other processes pay by GPUs as ever."""
    held = [*pair(300, 100, until_ms=5_000), Occupancy("run_c", "job_c", 1, 0)]
    reading = split(meter(ready_ms=0, gpu_count=4), held, until_ms=10_000)
    assert [(found.run_id, found.to_ms, found.amount.micros) for found in reading.lines] == [
        ("run_a", 5_000, 1_875),
        ("run_b", 5_000, 625),
        ("run_c", 5_000, 1_250),
        (None, 5_000, 1_250),
        ("run_b", 10_000, 2_500),
        ("run_c", 10_000, 1_250),
        (None, 10_000, 1_250),
    ]


def test_a_run_alone_pays_for_its_gpus_whatever_its_tokens() -> None:
    """Tokens divide what runs of one process share, and nothing else: two runs on a node pay by GPUs."""
    held = [Occupancy("run_a", "job_a", 1, 0, tokens=10**9), Occupancy("run_b", "job_b", 1, 0)]
    reading = split(meter(ready_ms=0, gpu_count=2), held, until_ms=10_000)
    assert [found.amount.micros for found in reading.lines] == [5_000, 5_000]


def test_overlapping_allocations_keep_the_meter_going() -> None:
    """When two processes' clocks make allocations overlap, the holders share the node and nothing is lost."""
    held = [Occupancy("run_a", "job_a", 1, 0, 11_000), Occupancy("run_b", "job_b", 1, 10_000)]
    reading = split(meter(ready_ms=0), held, until_ms=12_000)
    assert total(found.amount for found in reading.lines) == Money(12_000)
    assert [found.payer for found in reading.lines] == [Payer.RUN] * 4


def test_live_meter_leaves_out_the_minimum_and_the_started_unit() -> None:
    """While the machine runs only elapsed time is written; the minimum follows with the last reading."""
    boot = meter(rule=SECOND_MIN_60, ready_ms=None)
    live = split(boot, [], until_ms=2_500)
    assert live.metered == Money(2_500)
    closed = split(replace(boot, metered=live.metered, metered_until_ms=2_500), [], until_ms=2_600, final=True)
    assert closed.lines == (line(Payer.BOOT, 2_500, 2_600, 57_500),)


def test_rounding_up_falls_to_the_last_holder_even_without_new_time() -> None:
    """When the provider's end is our last reading, the rest of the started unit goes to who held the node then."""
    read = meter(rule=MINUTE, ready_ms=0, metered=Money(30_000), metered_until_ms=30_000)
    held = [Occupancy("run_a", "job_a", 1, 0, 30_000)]
    assert split(read, held, until_ms=30_000, final=True).lines == (line(Payer.RUN, 30_000, 30_000, 30_000, "run_a"),)


def test_end_before_the_last_reading_is_absorbed_by_the_started_unit() -> None:
    """An end that lies a little before our last reading still brings the sum to the bill, with no negative line."""
    read = meter(rule=MINUTE, ready_ms=0, metered=Money(30_000), metered_until_ms=30_000)
    reading = split(read, [Occupancy("run_a", "job_a", 1, 0)], until_ms=29_000, final=True)
    assert reading == MeterReading((line(Payer.RUN, 29_000, 29_000, 30_000, "run_a"),), 30_000, Money(60_000))


def test_overmetered_is_told() -> None:
    """When the bill is below what was already written, nothing is written and the difference is reported."""
    read = meter(ready_ms=0, metered=Money(30_000), metered_until_ms=30_000)
    reading = split(read, [], until_ms=28_000, final=True)
    assert reading == MeterReading((), 30_000, Money(30_000), overmetered=Money(2_000))


def test_providers_own_figure_wins_at_the_end() -> None:
    """The last line brings the sum to the provider's own total, above or below what its rule would give."""
    read = meter(ready_ms=0)
    held = [Occupancy("run_a", "job_a", 1, 0, 5_000)]
    above = split(read, held, until_ms=8_000, final=True, billed=Money(9_999))
    assert [found.amount.micros for found in above.lines] == [5_000, 4_999]
    below = split(read, held, until_ms=8_000, final=True, billed=Money(6_000))
    assert [found.amount.micros for found in below.lines] == [5_000, 1_000]
    tiny = split(read, held, until_ms=8_000, final=True, billed=Money(3_000))
    assert ([found.amount.micros for found in tiny.lines], tiny.overmetered) == ([3_000], Money(0))
    assert split(read, held, until_ms=8_000, billed=Money(1)).metered == Money(8_000)  # not on a live reading


def test_reading_backwards_changes_nothing() -> None:
    """A live reading at a moment before the last one writes nothing and does not turn the meter back."""
    read = meter(metered=Money(30_000), metered_until_ms=30_000)
    assert split(read, [], until_ms=20_000) == MeterReading((), 30_000, Money(30_000))


def test_free_machine_writes_nothing() -> None:
    """A machine of one's own at price zero has no lines at all."""
    assert split(meter(price_per_hour=Money(0)), [], until_ms=10**9, final=True).lines == ()


def test_serverless_equivalent() -> None:
    """The bill not paid: all running time in one piece at the serverless price."""
    assert serverless_equivalent(SECOND, Money.usd("2.10"), 4 * 3_600_000 + 1) == Money.usd("8.400583")


@st.composite
def lives(draw: st.DrawFn) -> tuple[Meter, list[Occupancy], list[int], int]:
    """A node with runs that come and go on its GPUs, some with a companion that comes and goes on the same one, the
    instants at which it is read, and its end."""
    start, length = draw(st.integers(0, 10**6)), draw(st.integers(1, 5 * 10**6))
    end = start + length
    gpus = draw(st.integers(1, 4))
    held = []
    for index in range(draw(st.integers(0, gpus))):  # one GPU each, one after the other
        edges = sorted(draw(st.lists(st.integers(start - 1000, end + 1000), max_size=6, unique=True)))
        for number, (a, b) in enumerate(zip(edges[::2], edges[1::2], strict=False)):
            lead = Occupancy(f"run_{index}_{number}", f"job_{index}", 1, a, b, tokens=draw(tokens))
            held.append(lead)
            if draw(st.booleans()):
                to_ms = draw(st.integers(a, b))  # or longer than its lead, which then has ended before it
                mate = Occupancy(f"{lead.run_id}_mate", f"job_mate_{index}", 1, a, b, lead.run_id, draw(tokens))
                held[-1:] = draw(
                    st.sampled_from([[lead, replace(mate, to_ms=to_ms)], [replace(lead, to_ms=to_ms), mate]])
                )
    readings = sorted(draw(st.lists(st.integers(start, end), max_size=6)))
    ready = draw(st.none() | st.integers(start, end))
    node = Meter(draw(rules), draw(prices), gpus, start, ready, "job_x")
    return node, held, readings, end


def read_all(node: Meter, held: list[Occupancy], readings: list[int], end: int) -> list[LedgerLine]:
    lines: list[LedgerLine] = []
    for until in readings:
        reading = split(node, held, until_ms=until)
        lines.extend(reading.lines)
        node = replace(node, metered=reading.metered, metered_until_ms=reading.metered_until_ms)
        assert total(found.amount for found in lines) == node.metered
        assert node.metered <= cost(node.rule, node.price_per_hour, node.billed_from_ms, until)
    final = split(node, held, until_ms=end, final=True)
    assert final.overmetered == Money(0)
    return [*lines, *final.lines]


@given(lives())
def test_ledger_equals_the_bill_whenever_it_is_read(life: tuple[Meter, list[Occupancy], list[int], int]) -> None:
    """However often and whenever the meter is read, all lines are positive and add up to the bill exactly."""
    node, held, readings, end = life
    lines = read_all(node, held, readings, end)
    assert total(found.amount for found in lines) == cost(node.rule, node.price_per_hour, node.billed_from_ms, end)
    assert all(found.amount > Money(0) and found.from_ms <= found.to_ms for found in lines)
    assert all((found.run_id is not None) == (found.payer is Payer.RUN) for found in lines)


@given(lives())
def test_payers_do_not_depend_on_when_it_is_read(life: tuple[Meter, list[Occupancy], list[int], int]) -> None:
    """Reading more often moves at most the rounding of each share between payers, never time."""
    node, held, readings, end = life

    def by_payer(lines: list[LedgerLine]) -> dict[tuple[str, str | None], int]:
        sums: dict[tuple[str, str | None], int] = {}
        for found in lines:
            key = (found.payer, found.run_id)
            sums[key] = sums.get(key, 0) + found.amount.micros
        return sums

    often, once = read_all(node, held, readings, end), read_all(node, held, [], end)
    slack = len(often) + len(once)
    sums, other = by_payer(often), by_payer(once)
    unit_rest = cost(node.rule, node.price_per_hour, node.billed_from_ms, end) - accrued(
        node.price_per_hour, node.billed_from_ms, end
    )
    # At the very end an empty last stretch may give the rounding up to the holder just before it.
    allowed = slack + (unit_rest.micros if readings and readings[-1] == end else 0)
    for key in sums.keys() | other.keys():
        assert abs(sums.get(key, 0) - other.get(key, 0)) <= allowed


@given(lives())
def test_a_line_lies_inside_its_holders_time(life: tuple[Meter, list[Occupancy], list[int], int]) -> None:
    """A run pays only for stretches in which it held GPUs of a node that was ready."""
    node, held, readings, end = life
    spans = {found.run_id: found for found in held}
    for found in read_all(node, held, readings, end):
        if found.run_id is not None and found.from_ms < found.to_ms:
            span = spans[found.run_id]
            assert node.ready_ms is not None
            assert max(span.from_ms, node.ready_ms) <= found.from_ms
            assert span.to_ms is not None
            assert found.to_ms <= span.to_ms


@given(lives())
def test_gpus_that_two_runs_hold_are_paid_once(life: tuple[Meter, list[Occupancy], list[int], int]) -> None:
    """A companion changes what nobody else pays: it and its lead pay together what the lead's GPUs cost alone."""
    node, held, readings, end = life
    partners = {found.run_id: found.process for found in held}
    alone = [replace(found, companion_of=None, run_id=found.process, job_id="job_p") for found in held]
    merged = [replace(found, tokens=0) for found in alone]  # two occupancies of one run: the same GPUs, once

    def by_stretch(lines: list[LedgerLine]) -> dict[tuple[str | None, int, int], int]:
        sums: dict[tuple[str | None, int, int], int] = {}
        for found in lines:
            key = (partners.get(found.run_id or "", found.run_id), found.from_ms, found.to_ms)
            sums[key] = sums.get(key, 0) + found.amount.micros
        return sums

    assert by_stretch(read_all(node, held, readings, end)) == by_stretch(read_all(node, merged, readings, end))


@given(prices, st.integers(1, 4), st.integers(1, 10**7), tokens, tokens)
def test_shares_follow_tokens(price: Money, gpus: int, lasts_ms: int, one: int, other: int) -> None:
    """Each side's share of a stretch is within a micro-dollar of its share of the tokens."""
    assume(one + other > 0)
    held = [Occupancy("run_a", "job_a", gpus, 0, tokens=one)]
    held += [Occupancy("run_b", "job_b", gpus, 0, companion_of="run_a", tokens=other)]
    reading = split(meter(price_per_hour=price, gpu_count=gpus, ready_ms=0), held, until_ms=lasts_ms)
    paid = {found.run_id: found.amount.micros for found in reading.lines}
    assert sum(paid.values()) == accrued(price, 0, lasts_ms).micros
    assert abs(paid.get("run_a", 0) - Fraction(reading.metered.micros * one, one + other)) < 1
