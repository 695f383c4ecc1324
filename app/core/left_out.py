"""Which guaranteed jobs find nothing free of one's own machines: spot jobs leave what their project has reserved for
them (ADR 0107). Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from app.core import queue
from app.core.gang_wishes import is_gang
from app.core.market import is_for, offer_fits
from app.core.model.job import PLACEABLE_JOB_STATES, PriorityClass, Resources
from app.core.model.offer import Offer
from app.core.model.pool import JOINED
from app.core.model.snapshot import JobView, Snapshot

_MOST_LOOKED_AT = 2_000  # jobs that wait, of one decision
_MOST_KINDS = 20  # of a project: whoever asks for much of many kinds keeps nobody else waiting

_Kind = tuple[str, Resources]


def any_waits(snapshot: Snapshot, projects: Collection[str]) -> bool:
    """Whether it is to be asked at all."""
    return any(job.project_id in projects and _waits(job, snapshot.now_ms) for job in snapshot.jobs)


def left_out(snapshot: Snapshot, projects: Collection[str]) -> set[str]:
    """Guaranteed jobs of these projects that wait and for which nothing is free of one's own machines, once those
    before them have theirs, of whichever project. Of a project twenty kinds of jobs are looked at."""
    own = [offer for offer in snapshot.offers if offer.provider == JOINED and not offer.spot_only]
    own.sort(key=lambda one: (one.gpu_count, one.key))
    waiting = sorted((job for job in snapshot.jobs if _waits(job, snapshot.now_ms)), key=queue.edf_key)
    taken: Counter[str] = Counter()
    places: dict[_Kind, _Places] = {}
    kinds: defaultdict[str, int] = defaultdict(int)
    found: set[str] = set()
    for job in waiting[:_MOST_LOOKED_AT]:
        kind = job.project_id, job.resources
        if kind not in places:
            if kinds[job.project_id] == _MOST_KINDS:
                continue
            kinds[job.project_id] += 1
            fitting = [offer for offer in own if offer_fits(job.resources, offer) and is_for(job, offer)]
            places[kind] = _Places(fitting, job.resources.gpus_min)
        host = places[kind].take(taken)
        if host is not None:
            taken[host] += job.resources.gpus_min
        elif job.project_id in projects:
            found.add(job.job_id)
    return found


@dataclass(slots=True)
class _Places:
    """For one kind of job, the smallest first. What has no room for one of them has none for the next, since nothing
    that was taken is given back."""

    offers: Sequence[Offer]
    gpus: int
    _next: int = 0

    def take(self, taken: Counter[str]) -> str | None:
        """The host of the first that has room; None: there is none."""
        while self._next < len(self.offers):
            offer = self.offers[self._next]
            if self.gpus <= offer.shared_gpus - taken[offer.host]:
                return offer.host
            self._next += 1
        return None


def _waits(job: JobView, now_ms: int) -> bool:
    return (
        job.priority_class is PriorityClass.GUARANTEED
        and job.state in PLACEABLE_JOB_STATES
        and job.not_before_ms <= now_ms
        and not job.leaving
        and not is_gang(job)
    )
