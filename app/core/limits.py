"""How much one installation rents from companies that ask for real money: machines at once, and dollars a day. Pure.

A day is one of UTC. What counts is what the meter has booked since it began, with what open machines have cost since,
and at least the first billing unit of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from app.core.billing import first_unit
from app.core.model.money import ZERO, Money
from app.core.model.node import BillingRule, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import ClosedProvider, Snapshot

DAY_MS = 86_400_000
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit."""

    machines: int | None
    per_day: Money | None


FIRST_TIME = Limits(machines=2, per_day=Money(10_000_000))


@dataclass(frozen=True, slots=True)
class OpenMachine:
    """A machine whose bill is not closed. `metered_until_ms`: None until something is booked."""

    rule: BillingRule
    price_per_hour: Money
    since_ms: int
    metered_until_ms: int | None
    metered: Money

    def unbooked(self, now_ms: int) -> Money:
        """What it has cost or must cost beyond what is booked; rather too much."""
        from_ms = self.since_ms if self.metered_until_ms is None else self.metered_until_ms
        since = -(-self.price_per_hour.micros * max(0, now_ms - from_ms) // _HOUR_MS)
        least = first_unit(self.rule, self.price_per_hour) - self.metered
        return max(Money(since), least)


def rented_at(rule: BillingRule, offer: Offer, now_ms: int) -> OpenMachine:
    """A machine of this offer, of which nothing is booked yet."""
    return OpenMachine(rule, offer.price_per_hour, since_ms=now_ms, metered_until_ms=None, metered=ZERO)


@dataclass(frozen=True, slots=True)
class Rented:
    """What counts against the limits now."""

    machines: int
    spent: Money

    def with_one_more(self, machine: OpenMachine, now_ms: int) -> Rented:
        """As it is when this machine was rented as well."""
        return Rented(self.machines + 1, self.spent + machine.unbooked(now_ms))

    def full(self, limits: Limits) -> str | None:
        """Why not one more machine is rented, in words; None while one may be."""
        if limits.machines is not None and self.machines >= limits.machines:
            return (
                f"{self.machines} of at most {limits.machines} machines at real providers are rented: goes on when one "
                "has ended, or when an owner allows more (allpass limits set --machines N)"
            )
        return None

    def over_day(self, limits: Limits) -> bool:
        """Whether all that may be spent in a day is."""
        return limits.per_day is not None and self.spent >= limits.per_day

    def refuses(self, limits: Limits, least: Money) -> str | None:
        """Why a machine that costs at least so much is not rented, in words; None if it may be."""
        full = self.full(limits)
        if full is not None:
            return full
        if limits.per_day is None or (not self.over_day(limits) and self.spent + least <= limits.per_day):
            return None
        return (
            f"{self.spent} of at most {limits.per_day} a day at real providers is spent, and the first billing unit of "
            f"this machine is {least}: goes on at 00:00 UTC, or when an owner allows more "
            "(allpass limits set --per-day DOLLARS)"
        )


def day_begins_ms(now_ms: int) -> int:
    """When the present day of UTC began."""
    return now_ms - now_ms % DAY_MS


def within_limits(seen: Snapshot, real: Collection[str], limits: Limits, rented: Rented) -> Snapshot:
    """The snapshot without offers that the limits do not allow, and with the reason where a provider has none left."""
    rules = {(one.provider, one.tier): one for one in seen.traits}
    refused: dict[str, str] = {}
    kept = []
    for offer in seen.offers:
        why = rented.refuses(limits, least_of(offer, rules)) if offer.provider in real else None
        if why is None:
            kept.append(offer)
        else:
            refused.setdefault(offer.provider, why)
    if not refused:
        return seen
    gone = _without_any(refused, kept, (one.provider for one in seen.closed))
    closed = sorted((*seen.closed, *gone), key=lambda one: one.provider)
    return replace(seen, offers=tuple(kept), closed=tuple(closed))


def least_of(offer: Offer, rules: Mapping[tuple[str, Tier], ProviderTraits]) -> Money:
    """What a machine of this offer costs at least."""
    traits = rules.get((offer.provider, offer.tier))
    return ZERO if traits is None else first_unit(traits.billing, offer.price_per_hour)


def _without_any(refused: Mapping[str, str], kept: Iterable[Offer], closed: Iterable[str]) -> Iterable[ClosedProvider]:
    told = {offer.provider for offer in kept} | set(closed)
    return [ClosedProvider(provider, why) for provider, why in refused.items() if provider not in told]
