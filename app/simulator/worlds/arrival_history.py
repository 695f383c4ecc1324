"""What a simulation's first jobs on fresh machines have shown about arrivals; kept as the service keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from app.core.arrivals import Arrived
from app.core.model.node import Tier
from app.core.model.snapshot import NodeView


@dataclass(slots=True)
class _Sums:
    count: int = 0
    took_ms: int = 0
    micros: float = 0.0


@dataclass(slots=True)
class ArrivalHistory:
    """Of all machines so far, by company and tier."""

    _sums: dict[tuple[str, Tier], _Sums] = field(default_factory=dict)

    def arrived(self, view: NodeView, took_ms: int, micros_of_host: float) -> None:
        """The first job of a machine will train in so long; one host's bytes cost so much."""
        sums = self._sums.setdefault((view.provider, view.tier), _Sums())
        sums.count += 1
        sums.took_ms += took_ms
        sums.micros += micros_of_host

    def seen(self) -> Iterator[Arrived]:
        """As it is learned from."""
        for (provider, tier), sums in self._sums.items():
            yield Arrived(provider, tier, "", sums.count, sums.took_ms, sums.micros)
