"""A marketplace whose hosts can be bid for: what the lowest bid is over time, and when a bid is lost.

The lowest bid that has a host is a share of what the host costs on demand. Its logarithm wanders about a median, as a
calm market's price does (`app.simulator.prices`). Who bids pays what he has bid, and never bids more for the same
host. He loses it as soon as the lowest bid is above his, or when somebody rents it on demand, which happens at random.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.core.model.job import PriorityClass
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.simulator.prices import CALM_STEP_S, PriceCurve, wandering
from app.simulator.worlds.world import World

if TYPE_CHECKING:
    from app.simulator.scenario import Task

USUAL_PERCENT = 120  # of the lowest bid, as the service's ALLPASS_VAST_BID_PERCENT
_BID = "~bid"


@dataclass(frozen=True, slots=True)
class BidMarket:
    """`lowest`: the lowest bid for a host of A100s over time, in dollars for a GPU and hour, and `on_demand`, what it
    costs without one; other types of GPU in proportion. `percent` of the lowest is bid. A host that was bid for is
    rented on demand by somebody after `taken_s` on average; 0: by nobody, ever."""

    lowest: PriceCurve
    on_demand: PriceCurve
    taken_s: float
    percent: int = USUAL_PERCENT

    def share(self, now_s: float) -> float:
        """What is bid now, as a share of the price on demand; 1 where that is nothing."""
        on_demand = self.on_demand.at(now_s)
        return self._bid_usd(now_s) / on_demand if on_demand else 1.0

    def lost_s(self, bid_s: float, ready_s: float, chance: random.Random) -> float:
        """When a bid of `bid_s` is lost whose machine is ready at `ready_s`: not before, and maybe never."""
        taken_s = ready_s + chance.expovariate(1 / self.taken_s) if self.taken_s else math.inf
        return min(taken_s, self._outbid_s(self._bid_usd(bid_s), ready_s))

    def _bid_usd(self, now_s: float) -> float:
        return self.lowest.at(now_s) * self.percent / 100

    def _outbid_s(self, bid_usd: float, from_s: float) -> float:
        at_s: float | None = from_s
        while at_s is not None:
            if self.lowest.at(at_s) > bid_usd:
                return at_s
            at_s = self.lowest.next_change_after(at_s)
        return math.inf


def bid_market(
    world: World, on_demand: PriceCurve, seed: int, horizon_s: float, percent: int = USUAL_PERCENT
) -> BidMarket:
    """As the figures of the world say; the same seed draws the same, whatever is bid."""
    away = wandering(f"{seed} bids", horizon_s, world.bid_forgets_s)
    shares = [world.bid_share * math.exp(world.bid_sd_share * one) for one in away]
    times = sorted({*on_demand.times_s, *(float(step * CALM_STEP_S) for step in range(len(shares)))})
    lowest = (shares[min(max(0, int(at_s // CALM_STEP_S)), len(shares) - 1)] * on_demand.at(at_s) for at_s in times)
    return BidMarket(PriceCurve(tuple(times), tuple(lowest)), on_demand, world.bid_taken_s, percent)


def with_bids(offers: Iterable[Offer], market: BidMarket, now_s: float) -> tuple[Offer, ...]:
    """Hosts of the marketplace are offered both ways, as long as a bid is below the price on demand."""
    found, share = [], market.share(now_s)
    for offer in offers:
        found.append(offer)
        if offer.tier == Tier.MARKETPLACE and share < 1:
            price = Money(round(offer.price_per_hour.micros * share))
            found.append(replace(offer, offer_id=offer.offer_id + _BID, price_per_hour=price, spot_only=True))
    return tuple(found)


def below_on_demand(offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Without bids that cost no less than the cheapest host of their kind does on demand, as the service lists them."""
    least: dict[tuple[str, int], int] = {}
    for one in offers:
        if one.tier == Tier.MARKETPLACE and not one.spot_only:
            kind = one.gpu_type, one.gpu_count
            least[kind] = min(one.price_per_hour.micros, least.get(kind, one.price_per_hour.micros))
    return tuple(
        one
        for one in offers
        if not one.interruptible or one.price_per_hour.micros < least.get((one.gpu_type, one.gpu_count), 0)
    )


def with_classes(tasks: Iterable[Task], spot_share: float, seed: int) -> tuple[Task, ...]:
    """Such a share of the jobs are spot jobs: of two shares, whoever is one with the smaller is one with the larger."""
    chance = random.Random(f"{seed} classes")  # noqa: S311 - a simulation
    return tuple(_classed(task, is_spot=chance.random() < spot_share) for task in tasks)


def _classed(task: Task, *, is_spot: bool) -> Task:
    return replace(task, priority_class=PriorityClass.SPOT) if is_spot else task
