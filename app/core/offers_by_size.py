"""Offers by type and number of GPUs: of many thousands, whoever asks for several numbers looks at a few. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.core.gpu_speeds import GpuSpeeds
from app.core.job_prices import entered_micros
from app.core.model.node import Tier
from app.core.model.offer import Offer

Place = tuple[int, int, int]  # among all offers of a market: its tier's, what work costs there, and where it stands
_Group = tuple[Tier, int]  # and how many GPUs


@dataclass(frozen=True, slots=True)
class SizedOffer:
    """`can_be_had`: it has not failed the job recently, and nothing has to be built for it first."""

    offer: Offer
    can_be_had: bool


@dataclass(frozen=True, slots=True)
class WorkCost:
    """What the cost of an hour of work goes by, beside the offer (`app.core.job_prices`)."""

    stretch_ms: int
    staying_ms: int
    speeds: GpuSpeeds | None


class OffersBySize:
    """The offers of a market in groups, of which each is put in the order of a job's costs once for all jobs that have
    the same. `offers`: in the order of those that cost a job the same; `rank`: of their tiers."""

    def __init__(self, offers: Sequence[Offer], rank: Mapping[Tier, int]) -> None:
        self._offers, self._rank = offers, rank
        self._groups: dict[str, dict[_Group, list[int]]] = defaultdict(lambda: defaultdict(list))
        for index, offer in enumerate(offers):
            self._groups[offer.gpu_type][offer.tier, offer.gpu_count].append(index)
        self._sorted: dict[WorkCost, dict[tuple[str, _Group], list[Place]]] = defaultdict(dict)

    def types(self) -> Iterable[str]:
        """Of all GPUs."""
        return self._groups.keys()

    def groups(self, gpu_type: str, least: int, cost: WorkCost) -> Iterator[Iterator[tuple[Place, Offer]]]:
        """Of each group of this type with at least so many GPUs: its offers in order."""
        kept = self._sorted[cost]
        for group, indices in self._groups[gpu_type].items():
            if group[1] < least:
                continue
            places = kept.get((gpu_type, group))
            if places is None:
                places = kept[gpu_type, group] = sorted(self._place(index, cost) for index in indices)
            yield ((place, self._offers[place[-1]]) for place in places)

    def _place(self, index: int, cost: WorkCost) -> Place:
        offer = self._offers[index]
        micros = entered_micros(offer, cost.stretch_ms, cost.staying_ms, cost.speeds)
        return self._rank[offer.tier], micros, index
