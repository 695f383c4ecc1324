"""What of a market is to be had: hosts one by one, each further one dearer, and times in which there are none."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace

from app.core.model.money import MICROS_PER_USD, Money
from app.core.model.node import RENTED_TIERS, Tier
from app.core.model.offer import Offer
from app.simulator.scenario import hosts_of
from app.simulator.worlds.world import TierWorld, World

_SHOWN = 3  # hosts of each size: the dearer ones behind them are taken by nobody before these


class Droughts:
    """Times of plenty and of none, by turns, drawn as far as anybody asks; the same for whoever asks."""

    def __init__(self, share: float, mean_ms: float, chance: random.Random) -> None:
        self._share, self._mean_ms, self._chance = share, mean_ms, chance
        self._turns: list[int] = []  # at even places a drought begins, at odd ones it ends
        if share:
            self._turns.append(0 if chance.random() < share else self._drawn_ms(self._plenty_ms))

    @property
    def _plenty_ms(self) -> float:
        return self._mean_ms * (1 - self._share) / self._share

    def is_dry(self, now_ms: int) -> bool:
        self._reach(now_ms)
        return bisect_right(self._turns, now_ms) % 2 == 1

    def next_turn_ms(self, now_ms: int) -> int | None:
        """When it changes next; None: never."""
        self._reach(now_ms)
        return self._turns[bisect_right(self._turns, now_ms)] if self._turns else None

    def _reach(self, now_ms: int) -> None:
        while self._turns and self._turns[-1] <= now_ms:
            mean_ms = self._mean_ms if len(self._turns) % 2 == 1 else self._plenty_ms
            self._turns.append(self._turns[-1] + self._drawn_ms(mean_ms))

    def _drawn_ms(self, mean_ms: float) -> int:
        return max(1, round(self._chance.expovariate(1 / mean_ms)))


class Supply:
    """The hosts of one simulation. They are numbered from the cheapest on; what is given back is there again."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._droughts = {
            tier: Droughts(
                world.of(tier).drought_share,
                world.of(tier).drought_s * 1000,
                random.Random(f"{seed} droughts {tier.value}"),  # noqa: S311 - a simulation
            )
            for tier in RENTED_TIERS
        }
        self._taken: dict[Tier, set[int]] = {tier: set() for tier in RENTED_TIERS}
        self._hosts: dict[str, tuple[Tier, tuple[int, ...]]] = {}  # by node

    def offers(self, plain: Iterable[Offer], now_ms: int) -> tuple[Offer, ...]:
        """What is there of these, host by host, with the disk in the price."""
        return tuple(
            one for offer in plain if not self._droughts[offer.tier].is_dry(now_ms) for one in self._hosts_of(offer)
        )

    def _hosts_of(self, offer: Offer) -> Iterator[Offer]:
        figures = self._world.of(offer.tier)
        many = hosts_of(offer.gpu_count)
        disk_micros = micros(figures.storage_usd) * many
        traffic = micros(figures.traffic_usd)
        if not figures.hosts:
            price = Money(offer.price_per_hour.micros + disk_micros)
            yield replace(offer, price_per_hour=price, traffic_micros_per_gb=traffic)
            return
        free = self._free(offer.tier)
        for place in range(0, min(len(free), _SHOWN * many) - many + 1, many):
            dearer = _dearer(figures, free[place])
            price = Money(round(offer.price_per_hour.micros * dearer) + disk_micros)
            told = f"{offer.offer_id}#{free[place]}"
            yield replace(offer, offer_id=told, price_per_hour=price, traffic_micros_per_gb=traffic)

    def _free(self, tier: Tier) -> list[int]:
        taken = self._taken[tier]
        return [number for number in range(self._world.of(tier).hosts) if number not in taken]

    def has(self, offer: Offer, now_ms: int) -> bool:
        """Whether it is still there: an earlier action of the same plan may have taken it."""
        if self._droughts[offer.tier].is_dry(now_ms):
            return False
        if not self._world.of(offer.tier).hosts:
            return True
        first, free = _number(offer), self._free(offer.tier)
        return first in free and len(free) - free.index(first) >= hosts_of(offer.gpu_count)

    def take(self, node_id: str, offer: Offer) -> None:
        """The node is of this offer."""
        if not self._world.of(offer.tier).hosts:
            return
        free = self._free(offer.tier)
        place = free.index(_number(offer))
        numbers = tuple(free[place : place + hosts_of(offer.gpu_count)])
        self._taken[offer.tier].update(numbers)
        self._hosts[node_id] = offer.tier, numbers

    def give_back(self, node_id: str) -> None:
        tier, numbers = self._hosts.pop(node_id, (Tier.MARKETPLACE, ()))
        self._taken[tier].difference_update(numbers)

    def next_turn_ms(self, now_ms: int) -> int | None:
        """When a drought begins or ends next; None: there are none."""
        turns = (one.next_turn_ms(now_ms) for one in self._droughts.values())
        return min((turn for turn in turns if turn is not None), default=None)

    def is_dry(self, now_ms: int) -> bool:
        """Whether anything is not to be had."""
        return any(one.is_dry(now_ms) for one in self._droughts.values())


def _dearer(figures: TierWorld, number: int) -> float:
    return max(1.0, min(figures.dearer_most, 1 + figures.dearer_share * number))


def _number(offer: Offer) -> int:
    return int(offer.offer_id.rpartition("#")[2])


def micros(usd: float) -> int:
    """Whole micro-dollars, which is what is counted with."""
    return round(usd * MICROS_PER_USD)
