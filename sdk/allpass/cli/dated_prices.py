"""What is said below prices that come from a list, because a company has no interface for them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import TYPE_CHECKING

from allpass.cli import screen

if TYPE_CHECKING:
    from allpass.wire.price_lists import PriceList

_OLD_AFTER = "180 days"


def exact(micros: int) -> str:
    """Dollars to the last decimal: memory costs two cents."""
    whole, rest = divmod(micros, 1_000_000)
    return f"${whole:,}.{f'{rest:06d}'.rstrip('0').ljust(2, '0')}"


def tell_dates(prices: Iterable[tuple[str, date | None, bool]]) -> None:
    """Of providers, days and whether these are long ago: each provider once, by its oldest price."""
    oldest: dict[str, tuple[date, bool]] = {}
    for provider, as_of, is_old in prices:
        if as_of is not None and (provider not in oldest or as_of < oldest[provider][0]):
            oldest[provider] = (as_of, is_old)
    for provider, (as_of, is_old) in sorted(oldest.items()):
        if is_old:
            _warn(provider, as_of)
        else:
            screen.say(f"{screen.printable(provider)}: prices of a list as of {as_of} (allpass providers prices)")


def tell_list(provider: str, listed: PriceList) -> None:
    """The same, of the whole list of one provider."""
    if listed.is_old and listed.oldest is not None:
        _warn(provider, listed.oldest)


def _warn(provider: str, as_of: date) -> None:
    screen.warn(
        f"{provider}: some prices are of {as_of}, more than {_OLD_AFTER} ago. It has no interface that could be asked: "
        "compare them with what it asks now",
        hint=f"allpass providers prices {provider} NAME=DOLLARS   (allpass providers prices shows them)",
    )
