"""Prices that a company has no interface for: the list that an adapter has, and what an owner set in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from app.core.model.money import Money
from app.core.model.price_list import PriceList


@runtime_checkable
class PricedByList(Protocol):
    """What a provider is, beside `app.ports.provider.Provider`, whose company does not tell its prices."""

    def price_list(self) -> PriceList | None:
        """The prices as they are without an owner's; None: they come with every listing after all."""
        ...


class OwnPrices(Protocol):
    """What an owner set for one provider, as all processes know it."""

    async def known(self) -> Mapping[str, Money]:
        """Per hour, by name. What cannot be read now is as it was last known. Raises Transient only where nothing has
        been known so far."""
        ...


class ProcessOwnPrices:
    """What this process alone knows: for tools without a database, and for tests."""

    def __init__(self, prices: Mapping[str, Money] | None = None) -> None:
        self.prices = dict(prices or {})

    async def known(self) -> Mapping[str, Money]:
        """See `OwnPrices.known`."""
        return self.prices


def price_list_of(provider: object) -> PriceList | None:
    """The provider's list; None for one that tells its prices with every listing."""
    return provider.price_list() if isinstance(provider, PricedByList) else None
