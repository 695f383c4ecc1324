"""What it takes until a job trains on a machine that has just come up, learned from those that began on one.

A fresh machine fetches the job's environment, its base model and its data, and libraries are imported: that is paid
for, and does no work. Some companies charge for each gigabyte besides (`Offer.traffic_micros_per_gb`). Neither is in a
price per hour, and neither matters to a job of ten hours on a machine that lasts; to a job of five minutes, and where
machines fail every two hours, it does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.core.machine_lives import rounded_ms
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import NodeView

MOST_ARRIVAL_MS = 3_600_000  # what took longer is believed to have taken so long
_PRIOR = 1.0  # arrivals that took no time and cost nothing, believed in before there was any


@dataclass(frozen=True, slots=True)
class Arrived:
    """First jobs on fresh machines of one company's tier, rented by one project, lately.

    `took_ms`: of all of them together, from a ready machine to the first line of user code. `micros`: what a machine
    of one GPU cost beside its hours, of all of them together. `count` may be less for what is long ago.
    """

    provider: str
    tier: Tier
    project_id: str
    count: float
    took_ms: float
    micros: float


class Arrivals:
    """Mean arrivals by provider and tier; nothing where nobody has arrived yet.

    One project alone makes no company look worse to others: a mean is the least of those without any one of the
    projects, where there are several (as `MachineLives` does it).
    """

    def __init__(self, seen: Iterable[Arrived]) -> None:
        rows: dict[tuple[str, Tier], list[Arrived]] = defaultdict(list)
        for one in seen:
            rows[one.provider, one.tier].append(one)
        self._means = {kind: _means(of_kind) for kind, of_kind in rows.items()}

    def told_of(self, offer: Offer) -> Offer:
        """The offer, with what an arrival there takes and costs."""
        took_ms, micros = self._means.get((offer.provider, offer.tier), (0, 0))
        micros *= offer.gpu_count
        if (took_ms, micros) == (offer.arrival_ms, offer.arrival_micros):
            return offer
        return replace(offer, arrival_ms=took_ms, arrival_micros=micros)


def _means(rows: list[Arrived]) -> tuple[int, int]:
    by_project: dict[str, tuple[float, float, float]] = {}
    for one in rows:
        count, took_ms, micros = by_project.get(one.project_id, (0.0, 0.0, 0.0))
        took_ms += min(one.took_ms, MOST_ARRIVAL_MS * one.count)
        by_project[one.project_id] = count + one.count, took_ms, micros + one.micros
    without = [[sums for name, sums in by_project.items() if name != left_out] for left_out in by_project]
    if len(without) == 1:
        without = [list(by_project.values())]
    return min(_mean(sums, 1) for sums in without), min(_mean(sums, 2) for sums in without)


def _mean(sums: list[tuple[float, float, float]], place: int) -> int:
    value = sum(one[place] for one in sums) / (sum(one[0] for one in sums) + _PRIOR)
    return rounded_ms(value) if value >= 1 else 0


def with_arrivals(nodes: Iterable[NodeView], offers: Iterable[Offer]) -> tuple[NodeView, ...]:
    """The nodes, with what an arrival takes as offers of their kind say. Of a kind that is not on offer nothing is
    known."""
    known = {(one.provider, one.tier): (one.arrival_ms, one.arrival_micros // one.gpu_count) for one in offers}
    return tuple(_with_arrival(node, *known.get((node.provider, node.tier), (0, 0))) for node in nodes)


def _with_arrival(node: NodeView, took_ms: int, micros: int) -> NodeView:
    micros *= node.gpu_count
    if (node.arrival_ms, node.arrival_micros) == (took_ms, micros):
        return node
    return replace(node, arrival_ms=took_ms, arrival_micros=micros)
