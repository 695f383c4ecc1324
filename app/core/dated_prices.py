"""Which price of a list counts, how old it may be, and which new price is asked about twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.core.model.money import Money
from app.core.model.offer import Offer
from app.core.model.price_list import OwnPrice, PriceInUse, PriceList

OLD_AFTER_DAYS = 180
FAR_OFF_TIMES = 3
MOST_PER_HOUR = Money.usd(10_000)


@dataclass(frozen=True, slots=True)
class DatedPrices:
    """The prices of one provider that has a list, each with what is used in its place."""

    as_of: str
    prices: tuple[PriceInUse, ...]

    def oldest(self, gpu_type: str | None = None) -> str | None:
        """The earliest day among the prices in use; with a type of GPU, among those that its offers are made of. None:
        all of them are from the settings."""
        parts = (one for one in self.prices if gpu_type is None or one.gpu_type in (None, gpu_type))
        return min((one.as_of for one in parts if one.as_of is not None), default=None)


def prices_in_use(listed: PriceList, own: Iterable[OwnPrice]) -> DatedPrices:
    """An owner's price counts before that of the settings, and this before the published one. Owners' prices for what
    is not on the list (any more) are kept, and not used."""
    owners = {one.name: one for one in own}
    known = [
        PriceInUse(one.name, one.gpu_type, one.published, listed.as_of, one.setting, owners.pop(one.name, None))
        for one in listed.prices
    ]
    return DatedPrices(listed.as_of, (*known, *(PriceInUse(name, own=owners[name]) for name in sorted(owners))))


def day_of(lists: Mapping[str, DatedPrices], offer: Offer) -> str | None:
    """Since when the offer's price is known; None: its provider told it with the offer, or the settings have it."""
    dated = lists.get(offer.provider)
    return None if dated is None else dated.oldest(offer.gpu_type)


def is_old(as_of: str | None, fresh_since: str) -> bool:
    """Whether it is time to compare the price with what the company asks now. `fresh_since`: the day that was
    OLD_AFTER_DAYS ago."""
    return as_of is not None and as_of < fresh_since


def is_far_off(new: Money, used: Money) -> bool:
    """More than three times the price in use, or less than a third: rather a slip of the hand than a new price."""
    return new.micros > FAR_OFF_TIMES * used.micros or new.micros * FAR_OFF_TIMES < used.micros
