"""A job that asks for a range of GPUs begins on the largest piece of a pool that nobody else waits for (ADR 0106).

A policy places it as one that asks for the least of its range, so that it never waits for more. When all others of the
plan have their place, it has as many more as are left over: a machine that is cut from a host of a pool keeps the GPUs
that it was cut with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.core.board import Board
from app.core.market import is_for, kind_fits
from app.core.model.offer import Offer
from app.core.model.plan import Start
from app.core.model.run import RunPurpose
from app.core.model.snapshot import JobView
from app.core.policies import reasons

Hosts = Counter[tuple[str, str]]  # GPUs that a plan has given out, by provider and host


def is_range(job: JobView) -> bool:
    """Whether the job may have more GPUs than it needs to begin."""
    return job.resources.gpus_max > job.resources.gpus_min


def widened(starts: Sequence[Start], board: Board, waiting: Sequence[JobView], taken: Mapping[tuple[str, str], int],
            ) -> list[Start]:  # fmt: skip
    """The starts of a plan, of which those of ranges have more GPUs where these are left over: a size at a time, in
    turn. `waiting`: jobs that the plan gives nothing; `taken`: what it has given out of each host."""
    pieces = {
        start.job_id: board.own.pieces(board.jobs[start.job_id], start.offer)
        for start in starts
        if _may_widen(start, board) and not _is_awaited(start.offer, waiting)
    }
    given = Counter(taken)
    offers = {start.job_id: start.offer for start in starts}
    in_turn = list(pieces)
    while in_turn:
        in_turn = [job_id for job_id in in_turn if _step(job_id, offers, pieces[job_id], given)]
    return [_with(start, offers[start.job_id], board.jobs[start.job_id]) for start in starts]


def _may_widen(start: Start, board: Board) -> bool:
    """A pair of jobs, and a run that only measures, have what they were given."""
    job = board.jobs[start.job_id]
    is_alone = job.job_id not in board.merges and job.job_id not in board.companions
    return is_range(job) and is_alone and start.purpose is RunPurpose.TRAIN and bool(start.offer.shared_gpus)


def _is_awaited(offer: Offer, waiting: Sequence[JobView]) -> bool:
    """Whether somebody waits for GPUs of this kind, however many: what is left over adds up for them."""
    return any(
        kind_fits(one.resources, offer.gpu_type, offer.gpu_memory_bytes) and is_for(one, offer) for one in waiting
    )


def _step(job_id: str, offers: dict[str, Offer], pieces: Sequence[Offer], given: Hosts) -> bool:
    """The next larger piece that is free, if there is one; of two as large that on the host that has fewer left."""
    now = offers[job_id]
    free = [one for one in pieces if one.gpu_count > now.gpu_count and one.gpu_count <= _left(one, now, given)]
    if not free:
        return False
    larger = min(free, key=lambda one: (one.gpu_count, one.shared_gpus, one.key))
    given[now.provider, now.host] -= now.gpu_count
    given[larger.provider, larger.host] += larger.gpu_count
    offers[job_id] = larger
    return True


def _left(offer: Offer, now: Offer, given: Hosts) -> int:
    own = now.gpu_count if (now.provider, now.host) == (offer.provider, offer.host) else 0
    return offer.shared_gpus - given[offer.provider, offer.host] + own


def _with(start: Start, offer: Offer, job: JobView) -> Start:
    if offer is start.offer:
        return start
    need = job.resources
    told = (
        f"of the {need.gpus_min} to {need.gpus_max} GPUs that it asks for it begins on {offer.gpu_count}: the largest "
        f"piece that is free, of {reasons.offer(offer)}"
    )
    return replace(start, offer=offer, reason=f"{start.reason}; {told}")
