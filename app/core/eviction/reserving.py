"""What was freed is kept for whom it was freed, for a while: nobody else takes it, so that nobody is evicted for
nothing, and no two jobs evict each other in turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.eviction.amounts import Amounts, lacking, plus


@dataclass(frozen=True, slots=True)
class Reservation:
    """These amounts of a node are for one job until an instant, which itself is too late."""

    job_id: str
    node_id: str
    amounts: Amounts
    until_ms: int


def free_for(job_id: str, node_id: str, free: Amounts, reservations: Iterable[Reservation], now_ms: int) -> Amounts:
    """What the job may take of what is free on the node: all but what is reserved for others."""
    held = tuple(0 for _ in free)
    for one in reservations:
        if one.node_id == node_id and one.job_id != job_id and now_ms < one.until_ms:
            held = plus(held, one.amounts)
    return lacking(free, held)


def still_reserved(reservations: Iterable[Reservation], now_ms: int, started: str | None = None) -> list[Reservation]:
    """Those that have not expired, without those of a job that has started."""
    return [one for one in reservations if now_ms < one.until_ms and one.job_id != started]
