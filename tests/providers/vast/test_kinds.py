"""What is searched for together at Vast.ai, so that cheap GPUs never crowd the large ones out of an answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import Transient
from providers.vast.kinds import Kinds
from tests.providers.vast_emulator import EmulatedVast, NoPace

LIMIT = 20
KINDS = ("A10", "A100", "H100", "L4", "RTX4090", "T4")


class Market:
    """Answers as the company does: what is asked for, the cheapest first, cut at the limit."""

    def __init__(self, sold: dict[str, int]) -> None:
        self.sold = sold
        self.asked: list[tuple[str, ...]] = []

    async def ask(self, kinds: tuple[str, ...]) -> list[Any]:
        self.asked.append(kinds)
        dearer = {kind: price for price, kind in enumerate(("T4", "L4", "RTX4090", "A10", "A100", "H100"))}
        rows = [(kind, number) for kind in kinds or self.sold for number in range(self.sold[kind])]
        return sorted(rows, key=lambda row: (dearer[row[0]], row[1]))[:LIMIT]


async def test_one_search_does_where_all_are_shown() -> None:
    """As long as an answer is not cut, nothing more is asked."""
    market = Market(dict.fromkeys(KINDS, 3))
    kinds = Kinds(KINDS, LIMIT)
    for minute in range(3):
        assert Counter(kind for kind, _ in await kinds.search(market.ask, now_ms=minute * 60_000)) == market.sold
    assert market.asked == [KINDS] * 3


async def test_large_gpus_are_seen_beside_hundreds_of_small_ones() -> None:
    """From the tenth listing on at the latest; then each listing is one search, and none is more than three."""
    market = Market({"A10": 2, "A100": 5, "H100": 4, "L4": 3, "RTX4090": 900, "T4": 2})
    kinds = Kinds(KINDS, LIMIT)
    took = []
    for minute in range(10):
        before = len(market.asked)
        found = Counter(kind for kind, _ in await kinds.search(market.ask, now_ms=minute * 60_000))
        took.append(len(market.asked) - before)
    assert max(took) <= 3
    assert took[-5:] == [1] * 5
    assert found == market.sold | {"RTX4090": LIMIT}


async def test_they_are_one_search_again_when_there_are_few() -> None:
    market = Market({**dict.fromkeys(KINDS, 1), "RTX4090": 900})
    kinds = Kinds(KINDS, LIMIT)
    for minute in range(10):
        await kinds.search(market.ask, now_ms=minute * 60_000)
    market.sold["RTX4090"] = 1
    for minute in range(10, 20):
        await kinds.search(market.ask, now_ms=minute * 60_000)
    assert market.asked[-1] == KINDS


async def test_every_type_is_one_search() -> None:
    """Where no types are named, there is nothing to divide by."""
    market = Market({"T4": 900, "H100": 1})
    assert len(await Kinds((), LIMIT).search(market.ask, now_ms=0)) == LIMIT
    assert market.asked == [()]


async def test_a_search_that_fails_ends_the_listing_and_takes_nothing_away() -> None:
    market = Market({**dict.fromkeys(KINDS, 2), "T4": 900})
    kinds = Kinds(KINDS, LIMIT)
    for minute in range(10):
        known = await kinds.search(market.ask, now_ms=minute * 60_000)

    async def fails(_: tuple[str, ...]) -> list[Any]:
        raise Transient("no answer")

    with pytest.raises(Transient):
        await kinds.search(fails, now_ms=600_000)
    assert set(await kinds.search(market.ask, now_ms=660_000)) == set(known)


@settings(max_examples=60)
@given(st.lists(st.fixed_dictionaries({kind: st.integers(0, 60) for kind in KINDS}), min_size=1, max_size=3))
async def test_in_the_end_each_kind_is_seen_as_far_as_an_answer_reaches(worlds: list[dict[str, int]]) -> None:
    """Whatever the market was before: after twenty listings each kind is there, and nothing that is gone."""
    kinds = Kinds(KINDS, LIMIT)
    minute = 0
    for sold in worlds:
        market = Market(sold)
        for _ in range(20):
            minute += 1
            rows = await kinds.search(market.ask, now_ms=minute * 60_000)
        found = Counter(kind for kind, _ in set(rows))
        assert {kind for kind, count in sold.items() if count} == set(found)
        assert all(number < sold[kind] for kind, number in rows)


async def test_the_company_is_asked_type_by_type_where_it_cuts(vast: EmulatedVast) -> None:
    """The real adapter: with a limit that one kind fills alone, all kinds are offered within eight listings."""
    wanted = ("A100", "H100", "RTX4090", "T4")
    provider = vast.provider(pace=NoPace(), gpu_types=wanted, search_limit=3)
    offers = [await provider.offers() for _ in range(8)][-1]
    assert {offer.gpu_type for offer in offers} == set(wanted)
    await provider.close()
