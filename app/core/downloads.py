"""How fast machines download, against what their offers promised: a link that is far below keeps a job waiting, paid.

A slow download may be the fault of this service's own link, and is then slow everywhere. So a host is slow only where
it is far below both its promise and what this service has sent to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, TypeGuard

from app.core.model.offer import Offer

PROMISE_PART = 0.1
"""Of the promised bandwidth: it was measured elsewhere, with many connections at once."""

OTHERS_PART = 0.2
"""Of what is usual here."""

LEAST_OTHERS = 3
FAST_ENOUGH_MBPS = 50.0
"""Nobody waits long there, whatever was promised."""

_MOST = 2**53
_PRICE_PART = 1.5  # of what is paid now: for more than that, there is nothing else


def download_mbps(host: Mapping[str, Any]) -> float | None:
    """What the agent has measured, in Mbit/s; None where it has not."""
    told = host.get("download")
    if not isinstance(told, Mapping):
        return None
    read, ms = told.get("bytes"), told.get("ms")
    if not _is_count(read) or not _is_count(ms):
        return None
    return read * 8 / ms / 1000


def is_far_below(mbps: float, promised_mbps: int, others: Iterable[float]) -> bool:
    """Whether the host is slow. `others`: what other hosts have measured lately; too few say nothing."""
    known = list(others)
    if mbps >= min(promised_mbps * PROMISE_PART, FAST_ENOUGH_MBPS) or len(known) < LEAST_OTHERS:
        return False
    return mbps < median(known) * OTHERS_PART


def is_elsewhere(offer: Offer, offers: Iterable[Offer], barred: Iterable[str]) -> bool:
    """Whether the same company rents the like of this offer on another host, at a price that is not much higher."""
    shut = {offer.host, *barred}
    return any(
        other.provider == offer.provider
        and other.host not in shut
        and other.gpu_type == offer.gpu_type
        and other.gpu_count >= offer.gpu_count
        and other.gpu_memory_bytes >= offer.gpu_memory_bytes
        and other.price_per_hour.micros <= offer.price_per_hour.micros * _PRICE_PART
        for other in offers
    )


def _is_count(told: Any) -> TypeGuard[int]:
    return isinstance(told, int) and not isinstance(told, bool) and 0 < told < _MOST
