"""How long machines live before they fail, learned from those that were rented, and what that makes them cost.

Where machines fail, work is done twice and jobs wait for a new place; an hour of work takes more than an hour of rent.
Policies weigh with what it takes: the price times the expected time for a stretch of work between two saves, over the
stretch. With machines that live for M on average (a Poisson process), stretches of T, saves of C and a restart of R
that is

    (exp((T + C) / M) - 1) (M + R) / T

(Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006, equation 20), over
(T + C) / T with the T of machines that do not fail. Where they do, saves are closer: T is sqrt(2 C M) (Young, "A first
order approximation to the optimum checkpoint interval", 1974), within bounds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import NodeView

HALF_LIFE_MS = 24 * 3_600_000  # of what was seen: a market that was left because machines failed is tried again
COUNTS_FOR_MS = 7 * HALF_LIFE_MS  # what is older counts less than a hundredth
SAVES_EVERY_MS = 600_000  # T where machines do not fail
SAVES_LEAST_MS = 60_000
SAVE_MS = 10_000  # C: what a save is taken to cost
_PRIOR_LIVED_MS, _PRIOR_FAILURES = 3_600_000, 0.01  # what is believed of machines that nobody has rented yet
_BID_LIVES_MS = 4 * 3_600_000  # what is believed of machines that are bid for, until some have been lost: assumed
_MOST_DEARER = 1_000.0
_DIGITS = 2  # that count of a mean life: so that plans do not change with every minute that machines live on


@dataclass(frozen=True, slots=True)
class Lived:
    """What machines of one kind, rented by one project, have lived so far, and how many failed under their jobs.

    Both are already less for what is long ago (`HALF_LIFE_MS`).
    """

    provider: str
    tier: Tier
    gpu_type: str
    project_id: str
    lived_ms: float
    failures: float
    interruptible: bool = False


class MachineLives:
    """Mean lives by provider, tier and type of GPU, and of machines that are bid for by themselves: that these fail
    more often says nothing about others. Of a type that few were rented of, what is known of its provider and tier
    counts more. A bid is believed to be lost now and then also where none has been yet.

    One project alone makes no kind of machine look worse to others: a rate is the least of what it is without any one
    of the projects that rented there, as long as there is more than one. Whoever breaks machines on purpose harms
    nobody else.
    """

    def __init__(self, seen: Iterable[Lived]) -> None:
        self._of_tier: dict[tuple[str, Tier, bool], list[Lived]] = defaultdict(list)
        for one in seen:
            self._of_tier[one.provider, one.tier, one.interruptible].append(one)
        self._known: dict[tuple[str, Tier, str, bool], int] = {}

    def told_of(self, offer: Offer) -> Offer:
        """The offer, with how long such machines live."""
        mean_ms = self.mean_ms(offer.provider, offer.tier, offer.gpu_type, interruptible=offer.interruptible)
        return offer if mean_ms == offer.mean_life_ms else replace(offer, mean_life_ms=mean_ms)

    def mean_ms(self, provider: str, tier: Tier, gpu_type: str, *, interruptible: bool = False) -> int:
        """0: as good as none has failed."""
        kind = provider, tier, gpu_type, interruptible
        if kind not in self._known:
            seen = self._of_tier.get((provider, tier, interruptible), [])
            self._known[kind] = _bid_mean_ms(seen, gpu_type) if interruptible else _mean_ms(seen, gpu_type)
        return self._known[kind]


_Sums = tuple[float, float, float, float]  # failures and life of machines of the type, and of those of other types


def _mean_ms(seen: list[Lived], gpu_type: str) -> int:
    by_project = _by_project(seen, gpu_type)
    failing = sum(sums[0] > 0 or sums[2] > 0 for sums in by_project.values())
    if failing < min(2, len(by_project)) or not failing:
        return 0
    return rounded_ms(1 / _least_rate(by_project, _PRIOR_FAILURES / _PRIOR_LIVED_MS))


def _bid_mean_ms(seen: list[Lived], gpu_type: str) -> int:
    """Of machines that are bid for: what is believed before counts as an hour of their life."""
    return rounded_ms(1 / _least_rate(_by_project(seen, gpu_type), 1 / _BID_LIVES_MS))


def _by_project(seen: list[Lived], gpu_type: str) -> dict[str, _Sums]:
    by_project: dict[str, _Sums] = {}
    for one in seen:
        sums = (one.failures, one.lived_ms, 0.0, 0.0)
        if one.gpu_type != gpu_type:
            sums = (0.0, 0.0, one.failures, one.lived_ms)
        before = by_project.get(one.project_id)
        by_project[one.project_id] = sums if before is None else _total((before, sums))
    return by_project


def _least_rate(by_project: Mapping[str, _Sums], prior_rate: float) -> float:
    """The least without any one of the projects, where there are several."""
    if not by_project:
        return prior_rate
    whole = _total(by_project.values())
    without = [_less(whole, sums) for sums in by_project.values()]
    return min(_rate(sums, prior_rate) for sums in (without if len(without) > 1 else [whole]))


def _total(several: Iterable[_Sums]) -> _Sums:
    failures, lived_ms, other_failures, other_lived_ms = zip(*several, strict=True)
    return math.fsum(failures), math.fsum(lived_ms), math.fsum(other_failures), math.fsum(other_lived_ms)


def _less(whole: _Sums, part: _Sums) -> _Sums:
    a, b, c, d = (max(0.0, of_all - of_part) for of_all, of_part in zip(whole, part, strict=True))
    return a, b, c, d


def _rate(sums: _Sums, prior_rate: float) -> float:
    """Failures per millisecond, of the type; what is known of the other types counts as an hour of it."""
    failures, lived_ms, other_failures, other_lived_ms = sums
    of_others = _posterior(other_failures, other_lived_ms, prior_rate)
    return _posterior(failures, lived_ms, of_others)


def _posterior(failures: float, lived_ms: float, prior_rate: float) -> float:
    """The mean of a Gamma distribution that began with an hour of life at the rate believed before."""
    return (failures + prior_rate * _PRIOR_LIVED_MS) / (lived_ms + _PRIOR_LIVED_MS)


def rounded_ms(value: float) -> int:
    """What was learned, to two digits; at least 1."""
    digits = _DIGITS - 1 - math.floor(math.log10(max(value, 1.0)))
    return max(1, round(round(value, digits)))


def fading(ago_ms: int) -> float:
    """How much counts of what was seen so long ago."""
    return float(0.5 ** (max(0, ago_ms) / HALF_LIFE_MS))


def weighed_micros(one: Offer | NodeView, stretch_ms: int = 0) -> int:
    """What an hour of work costs there, in micro-dollars: the price of an hour where machines do not fail. Where they
    do, each failure brings the job to a fresh one, which costs an arrival (`app.core.arrivals`).

    `stretch_ms`: of work between two saves; 0: as far apart as they are taken to be on such machines.
    """
    restart_ms = one.startup_ms if isinstance(one, Offer) else max(0, one.expected_ready_ms - one.requested_ms)
    micros = one.price_per_hour.micros * dearer(one.mean_life_ms, restart_ms + one.arrival_ms, stretch_ms)
    return round(micros + (one.arrival_micros * 3_600_000 / one.mean_life_ms if one.mean_life_ms else 0))


def saves_every_ms(mean_life_ms: int, most_ms: int = SAVES_EVERY_MS) -> int:
    """How far apart saves are taken to be on machines that live so long; `allpass.training.spacing` measures what one
    costs."""
    if mean_life_ms <= 0:
        return most_ms
    return min(most_ms, max(SAVES_LEAST_MS, math.isqrt(2 * SAVE_MS * mean_life_ms)))


def dearer(mean_life_ms: int, restart_ms: int, stretch_ms: int = 0) -> float:
    """How many times the price an hour of work costs on machines that live so long; 1 where they do not fail."""
    if mean_life_ms <= 0:
        return 1.0
    every_ms = stretch_ms or saves_every_ms(mean_life_ms)
    stretch = (every_ms + SAVE_MS) / mean_life_ms
    if stretch > math.log(_MOST_DEARER):
        return _MOST_DEARER
    work = math.expm1(stretch) * (mean_life_ms + max(0, restart_ms)) / every_ms
    return min(_MOST_DEARER, max(1.0, work / (1 + SAVE_MS / SAVES_EVERY_MS)))


def with_lives(nodes: Iterable[NodeView], offers: Iterable[Offer]) -> tuple[NodeView, ...]:
    """The nodes, with how long such machines live as offers of their kind say. Of a kind that is not on offer nothing
    is known, and of bids what is believed before."""
    known = {_kind(one): one.mean_life_ms for one in offers if one.mean_life_ms}
    return tuple(
        _with_life(one, known.get(_kind(one), rounded_ms(_BID_LIVES_MS) if one.interruptible else 0)) for one in nodes
    )


def _kind(one: Offer | NodeView) -> tuple[str, Tier, str, bool]:
    return one.provider, one.tier, one.gpu_type, one.interruptible


def _with_life(node: NodeView, mean_life_ms: int) -> NodeView:
    return node if node.mean_life_ms == mean_life_ms else replace(node, mean_life_ms=mean_life_ms)
