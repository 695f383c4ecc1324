"""Money: exact, readable, and never a float."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model.money import Money, total

amounts = st.integers(-(10**15), 10**15).map(Money)


@given(amounts)
def test_text_and_back(amount: Money) -> None:
    """What is printed, without its sign of currency, is read back as the same amount."""
    assert Money.usd(str(amount).replace("$", "")) == amount


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "$0.00"), (1, "$0.000001"), (2_100_000, "$2.10"), (-500_000, "-$0.50"), (1_234_567_890, "$1234.56789")],
)
def test_as_people_read_it(micros: int, text: str) -> None:
    """At least two decimals, no needless ones, and the sign before the currency."""
    assert str(Money(micros)) == text


@given(amounts, amounts, amounts)
def test_sums_are_exact(a: Money, b: Money, c: Money) -> None:
    """Adding and taking away again gives the amount itself, and a total does not depend on order."""
    assert a + b - b == a
    assert total([a, b, c]) == total([c, b, a]) == a + b + c
    assert (a < b) == (a.micros < b.micros)


def test_finer_than_a_micro_dollar_is_refused() -> None:
    """An amount that would have to be rounded is an error where it enters."""
    assert Money.usd(Decimal("0.000001")) == Money(1)
    assert Money.usd(3) == Money(3_000_000)
    with pytest.raises(ValueError, match=r"0\.0000001"):
        Money.usd("0.0000001")


def test_total_of_nothing() -> None:
    """The sum of no amounts is no money."""
    assert total([]) == Money(0)
