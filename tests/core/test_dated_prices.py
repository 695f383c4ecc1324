"""Which price of a list counts, when it is old, and which new one is far off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import codec
from app.core.dated_prices import DatedPrices, day_of, is_far_off, is_old, prices_in_use
from app.core.model.money import Money
from app.core.model.price_list import ListedPrice, OwnPrice, PriceInUse, PriceList, PriceSource
from tests.core.samples import OFFERS

PUBLISHED = "2026-05-07"
LATER = "2026-11-20"
amounts = st.integers(1, 10**10).map(Money)


def listed(*prices: ListedPrice) -> PriceList:
    return PriceList("2026-05-07", prices)


def own(name: str, micros: int = 5, as_of: str = LATER) -> OwnPrice:
    return OwnPrice(name, Money(micros), as_of, 1, "key_1")


def by_name(dated: DatedPrices) -> dict[str, PriceInUse]:
    return {one.name: one for one in dated.prices}


H100 = ListedPrice("H100", Money(100), "H100")
L4 = ListedPrice("L4", Money(40), "L4", setting=Money(50))
CPU = ListedPrice("cpu", Money(1))


def test_an_owner_counts_before_the_settings_and_these_before_the_list() -> None:
    """Each price by itself: what nobody has corrected is as published, with the day of the list."""
    shown = by_name(prices_in_use(listed(H100, L4, CPU), [own("cpu", 2)]))
    assert [(one.used, one.source, one.as_of) for one in shown.values()] == [
        (Money(100), PriceSource.LIST, PUBLISHED),
        (Money(50), PriceSource.SETTING, None),
        (Money(2), PriceSource.OWNER, LATER),
    ]
    corrected = by_name(prices_in_use(listed(L4), [own("L4", 60)]))["L4"]
    assert (corrected.used, corrected.source, corrected.setting) == (Money(60), PriceSource.OWNER, Money(50))


def test_an_owners_price_of_what_is_not_on_the_list_is_kept_and_not_used() -> None:
    """Its GPU may come back to the list, or be of a newer release."""
    shown = by_name(prices_in_use(listed(H100), [own("H900")]))
    assert shown["H900"].own is not None
    assert (shown["H900"].used, shown["H900"].source, shown["H900"].as_of) == (None, None, None)


def test_the_oldest_price_of_an_offer_is_that_of_its_parts() -> None:
    """Of an H100: what it costs, and what all offers have in them. Prices of other GPUs do not matter to it."""
    dated = prices_in_use(listed(H100, L4, CPU), [own("H100"), own("cpu", as_of="2026-10-01")])
    assert dated.oldest("H100") == "2026-10-01"
    assert prices_in_use(listed(H100, L4, CPU), [own("cpu")]).oldest("H100") == PUBLISHED
    assert prices_in_use(listed(L4), []).oldest() is None  # from the settings, which have no date
    offer = OFFERS[0]
    assert day_of({}, offer) is None
    assert day_of({offer.provider: prices_in_use(listed(CPU), [])}, offer) == PUBLISHED


@given(st.sets(st.sampled_from(["H100", "L4", "cpu", "gone"])))
def test_no_price_in_use_is_older_than_the_oldest(corrected: set[str]) -> None:
    """Whatever is corrected: the oldest of all is the oldest of some offer, and nothing that is used lacks a price."""
    dated = prices_in_use(listed(H100, L4, CPU), [own(name) for name in corrected])
    days = [one.as_of for one in dated.prices if one.used is not None and one.as_of is not None]
    assert dated.oldest() == min(days, default=None)
    assert all(one.used is not None for one in dated.prices if one.name != "gone")
    offers = [dated.oldest(gpu_type) for gpu_type in ("H100", "L4")]
    assert dated.oldest() == min((day for day in offers if day is not None), default=None)


def test_a_price_is_old_from_before_the_day_on_which_it_was_fresh() -> None:
    """The day itself counts; one without a date is never said to be old."""
    assert not is_old(PUBLISHED, PUBLISHED)
    assert is_old(PUBLISHED, "2026-05-08")
    assert not is_old(PUBLISHED, "2025-12-31")
    assert not is_old(None, LATER)


@pytest.mark.parametrize(
    ("new", "used", "far"), [(300, 100, False), (301, 100, True), (34, 100, False), (33, 100, True), (1, 0, True)]
)
def test_more_than_three_times_or_less_than_a_third_is_far_off(new: int, used: int, *, far: bool) -> None:
    """To the micro-dollar; what costs nothing now has every price far off."""
    assert is_far_off(Money(new), Money(used)) is far


@given(amounts, amounts)
def test_far_off_is_the_same_in_both_directions(one: Money, other: Money) -> None:
    """Whoever takes a price back is asked as they were when they set it; the same price is never far off."""
    assert is_far_off(one, other) == is_far_off(other, one)
    assert not is_far_off(one, one)


def test_a_list_is_a_row_that_other_releases_read() -> None:
    """What is written is read as it was; fields of a newer release are ignored."""
    plain = codec.encode(listed(H100, L4, CPU))
    plain["currency"] = "USD"
    plain["prices"][0]["unit"] = "hour"
    assert codec.decode_row(PriceList, plain) == listed(H100, L4, CPU)
