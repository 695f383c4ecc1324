"""What spot jobs pay of the price of a machine: a share, exactly, of the time in which they alone hold it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.billing import LedgerLine, Meter, Occupancy, Payer, accrued, cost, split
from app.core.model.money import Money, total
from app.core.spot_share import FULL, SpotShare, at_share, paid_of, share_at
from tests.core.test_billing import lives, meter

THIRD_OFF = SpotShare(0, 700_000)
parts_of_a_price = st.sampled_from([0, 1, 300_000, 333_333, 999_999, FULL]) | st.integers(0, FULL)


def spot(run: str, gpus: int, from_ms: int, to_ms: int | None = None, **more: str) -> Occupancy:
    return Occupancy(f"run_{run}", f"job_{run}", gpus, from_ms, to_ms, is_spot=True, **more)


def told(lines: tuple[LedgerLine, ...]) -> list[tuple[str, str | None, int, int]]:
    """Payer, run, what is paid and what is not."""
    return [(one.payer, one.run_id, one.amount.micros, one.discount.micros) for one in lines]


def node(**changes: object) -> Meter:
    """A machine of a pool: a thousand micro-dollars a second, of which spot jobs pay seven tenths."""
    return meter(**({"ready_ms": 0, "rented_for_job_id": "job_a", "spot_shares": (THIRD_OFF,)} | changes))


def test_a_spot_job_that_is_alone_pays_the_share_and_a_guaranteed_one_after_it_the_price() -> None:
    """Exactly the time that each holds; what stands idle between them is at the full price."""
    held = [spot("a", 1, 0, 10_000), Occupancy("run_b", "job_b", 1, 12_000, 20_000)]
    reading = split(node(), held, until_ms=20_000, final=True)
    assert told(reading.lines) == [
        (Payer.RUN, "run_a", 7_000, 3_000),
        (Payer.IDLE, None, 2_000, 0),
        (Payer.RUN, "run_b", 8_000, 0),
    ]
    assert reading.metered == Money(20_000), "the machine costs what it costs"


def test_beside_a_guaranteed_job_a_spot_job_pays_the_price() -> None:
    """Nothing can be taken back while the other one is there; the share counts again as soon as it has left."""
    held = [spot("a", 1, 0), Occupancy("run_b", "job_b", 1, 4_000, 6_000)]
    reading = split(node(gpu_count=2), held, until_ms=10_000)
    assert told(reading.lines) == [
        (Payer.RUN, "run_a", 1_400, 600),
        (Payer.IDLE, None, 1_400, 600),
        (Payer.RUN, "run_a", 1_000, 0),
        (Payer.RUN, "run_b", 1_000, 0),
        (Payer.RUN, "run_a", 1_400, 600),
        (Payer.IDLE, None, 1_400, 600),
    ]


def test_two_spot_jobs_are_spot_jobs_alone_also_in_one_process() -> None:
    """They share what is paid as they share the price; a guaranteed companion makes all of it dear."""
    held = [replace(spot("a", 2, 0), tokens=300), replace(spot("b", 2, 0), companion_of="run_a", tokens=100)]
    assert told(split(node(gpu_count=2), held, until_ms=10_000).lines) == [
        (Payer.RUN, "run_a", 5_250, 2_250),
        (Payer.RUN, "run_b", 1_750, 750),
    ]
    mixed = [held[0], replace(held[1], is_spot=False)]
    assert [one.discount.micros for one in split(node(gpu_count=2), mixed, until_ms=10_000).lines] == [0, 0]


def test_a_machine_that_boots_for_a_spot_job_boots_at_the_share() -> None:
    """It holds GPUs of it from the request on. One that was rented ahead, for nobody yet, boots at the full price."""
    booting = node(ready_ms=10_000)
    assert told(split(booting, [spot("a", 1, 0)], until_ms=5_000).lines) == [(Payer.BOOT, None, 3_500, 1_500)]
    assert told(split(booting, [], until_ms=5_000).lines) == [(Payer.BOOT, None, 5_000, 0)]


def test_a_changed_share_counts_from_then_on_and_never_backwards() -> None:
    """To the millisecond, whenever the meter is read; where nothing was settled yet the full price counts."""
    shares = (SpotShare(2_000, 500_000), SpotShare(6_000, 0), SpotShare(8_000, FULL))
    reading = split(node(spot_shares=shares), [spot("a", 1, 0)], until_ms=10_000)
    assert [(one.from_ms, one.amount.micros, one.discount.micros) for one in reading.lines] == [
        (0, 2_000, 0),
        (2_000, 2_000, 2_000),
        (6_000, 0, 2_000),
        (8_000, 2_000, 0),
    ]


def test_the_started_unit_is_at_the_share_of_whoever_had_the_machine_last() -> None:
    """The provider's own figure too: whatever is due at the end is shared out as the time was."""
    read = node(metered=Money(30_000), metered_until_ms=30_000)
    held = [spot("a", 1, 0, 30_000)]
    closed = split(read, held, until_ms=30_000, final=True, billed=Money(31_000))
    assert told(closed.lines) == [(Payer.RUN, "run_a", 700, 300)]


def test_a_machine_of_nobody_and_one_without_a_share_are_at_the_full_price() -> None:
    """No discount without a pool that gives one, nor for what no job holds."""
    for one in (node(spot_shares=()), node(orphan=True)):
        assert all(line.discount == Money(0) for line in split(one, [spot("a", 1, 0)], until_ms=9_000).lines)


@pytest.mark.parametrize(("parts", "counts"), [(-1, 0), (FULL + 1, FULL), (10**30, FULL)])
def test_a_share_that_makes_no_sense_counts_as_the_nearest_that_does(parts: int, counts: int) -> None:
    """Somebody wrote it by hand: nobody is paid for using a machine, or pays more than its price."""
    assert share_at([SpotShare(5, parts)], 5) == counts
    assert share_at([SpotShare(5, parts)], 4) == FULL


@pytest.mark.parametrize(
    ("micros", "parts", "shown"), [(3, 500_000, 2), (1, 499_999, 0), (10**12, 1, 10**6), (0, 300_000, 0), (7, FULL, 7)]
)
def test_a_price_is_told_to_the_nearest_micro_dollar(micros: int, parts: int, shown: int) -> None:
    """Halves up, as all prices are."""
    assert at_share(micros, parts) == shown


@given(st.lists(st.tuples(st.integers(0, 10**15), parts_of_a_price), max_size=50))
def test_what_is_paid_of_many_amounts_is_exact(amounts: list[tuple[int, int]]) -> None:
    """All of it together is the exact sum of the shares, rounded down once; no part is negative or above its amount."""
    carried, paid = 0, []
    for amount, parts in amounts:
        one, carried = paid_of(amount, parts, carried)
        assert 0 <= one <= amount
        paid.append(one)
    assert sum(paid) == sum(Fraction(amount * parts, FULL) for amount, parts in amounts) // 1
    assert 0 <= carried < FULL


@st.composite
def spot_lives(draw: st.DrawFn) -> tuple[Meter, list[Occupancy], list[int], int]:
    """As `lives`, where any job may be spot, and the share changes now and then."""
    one, held, readings, end = draw(lives())
    changes = draw(st.lists(st.tuples(st.integers(one.billed_from_ms - 10, end + 10), parts_of_a_price), max_size=4))
    shares = tuple(SpotShare(at_ms, parts) for at_ms, parts in sorted(dict(changes).items()))
    kinds = {job_id: draw(st.booleans()) for job_id in sorted({each.job_id for each in held})}
    return replace(one, spot_shares=shares), [replace(each, is_spot=kinds[each.job_id]) for each in held], readings, end


def read_all(one: Meter, held: list[Occupancy], readings: list[int], end: int) -> tuple[list[LedgerLine], int]:
    """The lines of all readings, and what is carried on at the end."""
    lines: list[LedgerLine] = []
    for until_ms, final in [*((at_ms, False) for at_ms in readings), (end, True)]:
        reading = split(one, held, until_ms=until_ms, final=final)
        lines += reading.lines
        known = {"metered": reading.metered, "metered_until_ms": reading.metered_until_ms, "carried": reading.carried}
        one = replace(one, **known)  # type: ignore[arg-type]  # names and kinds as they are in a reading
    return lines, one.carried


def parts_then(one: Meter, held: list[Occupancy], at_ms: int) -> int:
    """What is paid then, in other words than the meter's: moment by moment."""
    there = [each for each in held if each.from_ms <= at_ms < (end_of(each))]
    if not there or any(not each.is_spot for each in there):
        return FULL
    settled = [each.parts for each in one.spot_shares if each.from_ms <= at_ms]
    return settled[-1] if settled else FULL


def end_of(held: Occupancy) -> int:
    return 2**60 if held.to_ms is None else held.to_ms


@given(spot_lives())
def test_what_is_paid_and_the_discount_are_the_bill(life: tuple[Meter, list[Occupancy], list[int], int]) -> None:
    """Whoever comes and goes, whenever the share changes and the meter is read: all lines and their discounts add up to
    what the machine costs, none is negative, and all that is paid is the exact sum of the shares, rounded down once."""
    one, held, readings, end = life
    lines, carried = read_all(one, held, readings, end)
    due = cost(one.rule, one.price_per_hour, one.billed_from_ms, end)
    assert total(line.amount + line.discount for line in lines) == due
    assert all(min(line.amount, line.discount) >= Money(0) < line.amount + line.discount for line in lines)
    exact = Fraction(0)
    for line in lines:
        at_ms = line.from_ms if line.from_ms < line.to_ms else line.from_ms - 1
        exact += Fraction((line.amount + line.discount).micros * parts_then(one, held, at_ms), FULL)
    assert total(line.amount for line in lines).micros == exact - Fraction(carried, FULL)


@given(spot_lives())
def test_the_share_is_of_exactly_the_time_of_spot_jobs_alone(
    life: tuple[Meter, list[Occupancy], list[int], int],
) -> None:
    """While the machine lives, what is paid of it follows from its price and from who held it, and not from when
    anybody looked: stretch by stretch, each to the micro-dollar."""
    one, held, readings, end = life
    lines, _ = read_all(one, held, readings, end)
    edges = {one.billed_from_ms, end, *(share.from_ms for share in one.spot_shares)}
    edges |= {edge for each in held for edge in (each.from_ms, end_of(each))}
    stretches = list(pairwise(sorted(edge for edge in edges if one.billed_from_ms <= edge <= end)))
    for from_ms, to_ms in stretches[:-1]:  # the last one has what is rounded up as well
        price = accrued(one.price_per_hour, one.billed_from_ms, to_ms)
        gross = (price - accrued(one.price_per_hour, one.billed_from_ms, from_ms)).micros
        paid = sum(line.amount.micros for line in lines if from_ms <= line.from_ms and line.to_ms <= to_ms)
        assert abs(paid - Fraction(gross * parts_then(one, held, from_ms), FULL)) < 1


@given(spot_lives())
def test_classes_change_what_is_paid_and_nothing_else(life: tuple[Meter, list[Occupancy], list[int], int]) -> None:
    """With everybody guaranteed the lines are the same but for the discount, which a share changes of nobody else."""
    one, held, readings, end = life
    every = dict.fromkeys([(share.from_ms, FULL) for share in one.spot_shares])
    at_full = replace(one, spot_shares=tuple(SpotShare(*share) for share in every))
    lines, _ = read_all(one, held, readings, end)
    whole, _ = read_all(at_full, held, readings, end)
    assert [replace(line, amount=line.amount + line.discount, discount=Money(0)) for line in lines] == whole
    for line in lines:
        if line.discount.micros:
            at_ms = line.from_ms if line.from_ms < line.to_ms else line.from_ms - 1
            assert all(each.is_spot for each in held if each.from_ms <= at_ms < end_of(each))
