"""How many GPUs the runs of a job had, from when to when, and why they changed. Pure.

A size is an allocation. Why it began is the newest wish of its run by then: more GPUs are a run's own as they are asked
for, fewer are its size once its training has left the others, which is later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from app.core.elastic.size_table import KeptSpeed
from app.core.model.money import Money


class SizeReason(StrEnum):
    BEGUN = "begun"  # the run began with it
    ASKED = "asked"  # the job's owner asked for it
    LENT = "lent"  # some are lent to a job that waits
    RETURNED = "returned"  # nobody else waits for them
    NO_FASTER = "no_faster"  # some made it no faster
    REFUSED = "refused"  # no process could begin on one of them
    UNKNOWN = "unknown"  # nothing is on record


@dataclass(frozen=True, slots=True)
class HeldSize:
    """An allocation. `before`: how many GPUs its run had until then; None: the run began with it."""

    size_id: str
    run_id: str
    node_id: str
    gpu_type: str
    gpus: int
    before: int | None
    price_per_hour: Money
    from_ms: int
    to_ms: int | None
    machines: int = 1  # of which these are all that the job has


@dataclass(frozen=True, slots=True)
class Wish:
    """That a run is to have another number of GPUs, in the words of its event. `for_job_id`: for whose sake.
    `machines`: it began on so many, and the job was on so many before."""

    run_id: str
    at_ms: int
    why: SizeReason
    text: str
    for_job_id: str | None = None
    machines: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Size:
    held: HeldSize
    why: SizeReason
    text: str
    for_job_id: str | None
    speed: KeptSpeed | None = None  # of jobs of its app, with so many of such GPUs


def explained(sizes: Sequence[HeldSize], wishes: Sequence[Wish]) -> list[Size]:
    """Each size with its reason. Both in the order in which they were written."""
    found = []
    by_run: dict[str, list[Wish]] = {}
    for wish in wishes:
        by_run.setdefault(wish.run_id, []).append(wish)
    read = dict.fromkeys(by_run, 0)
    for held in sizes:
        own, at = by_run.get(held.run_id, []), read.get(held.run_id, 0)
        while at < len(own) and own[at].at_ms <= held.from_ms:
            at += 1
        read[held.run_id] = at
        found.append(_explained(held, own[at - 1] if at else None))
    return found


def _explained(held: HeldSize, wish: Wish | None) -> Size:
    if held.before is None and wish is not None and wish.machines is not None:
        now, before = wish.machines
        return Size(replace(held, before=held.gpus * before // now), wish.why, wish.text, None)
    if held.before is None:
        return Size(held, SizeReason.BEGUN, "its run began with so many", None)
    if wish is None:
        return Size(held, SizeReason.UNKNOWN, f"after {held.before}; why is not on record", None)
    return Size(held, wish.why, wish.text, wish.for_job_id)
