"""Hosts that failed us: how much each failure counts, and until when a host is left alone.

A failure counts one point, half as much every six hours; a host with half a point or more is barred. So one failure
bars it for six hours, two at once for twelve, four for eighteen.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

HALF_LIFE_MS = 6 * 3_600_000
COUNTS_FOR_MS = 10 * HALF_LIFE_MS  # what is older counts less than a thousandth
_BARRED_FROM = 0.5


@dataclass(frozen=True, slots=True)
class HostFailure:
    """A machine that came to nothing. `machine` is the provider's reference of it: each counts once."""

    host: str
    machine: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class BarredHost:
    """`failures` that still count, and until when nothing is rented there if none is added."""

    host: str
    failures: int
    until_ms: int


def barred_hosts(failures: Iterable[HostFailure], now_ms: int) -> tuple[BarredHost, ...]:
    """The hosts to stay away from at `now_ms`, by name."""
    by_host: dict[str, list[HostFailure]] = defaultdict(list)
    for failure in failures:
        by_host[failure.host].append(failure)
    found = (_barred(host, own, now_ms) for host, own in sorted(by_host.items()))
    return tuple(one for one in found if one is not None)


def _barred(host: str, failures: list[HostFailure], now_ms: int) -> BarredHost | None:
    points = math.fsum(0.5 ** (max(0, now_ms - failure.at_ms) / HALF_LIFE_MS) for failure in failures)
    if points < _BARRED_FROM:
        return None
    return BarredHost(host, len(failures), now_ms + round(HALF_LIFE_MS * math.log2(points / _BARRED_FROM)))
