"""Bids: the same hosts as on demand, for less, until somebody pays more (ADR 0110)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from app.core.model.offer import Offer

_BID = "~bid"  # a host is the same offer at Vast.ai, whichever way it is rented
_Kind = tuple[str, int]  # type of GPU, and its memory


@dataclass(frozen=True, slots=True)
class PricedOffer:
    """An offer with what renting it takes. `bid` is None for an on-demand offer, else dollars an hour."""

    offer: Offer
    machine: str
    bid: Decimal | None


def offer_id_of(ask: str, *, bids: bool) -> str:
    """Our name for an offer of Vast.ai's, by the way in which it is rented."""
    return ask + _BID if bids else ask


def ask_of(offer_id: str) -> str:
    """Vast.ai's own name for it."""
    return offer_id.removesuffix(_BID)


def is_bid(offer_id: str) -> bool:
    return offer_id.endswith(_BID)


def below_on_demand(bids: Iterable[PricedOffer], on_demand: Sequence[PricedOffer]) -> list[PricedOffer]:
    """Of the bids those that cost less, per GPU, than the cheapest host of their kind does on demand. Others would be
    lost for nothing; where none of a kind is to be had on demand, nobody knows what it is worth."""
    ceilings: dict[_Kind, Decimal] = {}
    for one in on_demand:
        kind, price = _kind(one.offer), _gpu_price(one.offer)
        ceilings[kind] = min(price, ceilings.get(kind, price))
    return [one for one in bids if _gpu_price(one.offer) < ceilings.get(_kind(one.offer), Decimal(0))]


def _kind(offer: Offer) -> _Kind:
    return offer.gpu_type, offer.gpu_memory_bytes


def _gpu_price(offer: Offer) -> Decimal:
    return Decimal(offer.price_per_hour.micros) / offer.gpu_count
