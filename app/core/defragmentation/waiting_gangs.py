"""Which jobs on several machines wait for room that moves could make, and where they could have it."""

from __future__ import annotations

from collections.abc import Iterator

from app.core import queue
from app.core.defragmentation.gang_room import GangWish
from app.core.defragmentation.packing import OwnPlace, Packing
from app.core.defragmentation.seen_fleet import SeenFleet
from app.core.market import is_for, offer_fits
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView
from app.core.pools import cut_of, kinds_of, used_gpus
from app.core.topology import Domain

_MOST = 20  # jobs that room is looked for in one plan
_UNSAID: Domain = ("", "")


def waiting_gangs(seen: SeenFleet, packing: Packing) -> Iterator[list[GangWish]]:
    """The first by deadline first, each with the pools and kinds of GPUs that would do. Not those that rest after they
    could not begin, nor those that have machines already, or for which others are leaving."""
    waiting = [job for job in seen.snapshot.jobs if job.state in PLACEABLE_JOB_STATES and not job.leaving]
    gangs = [job for job in waiting if job.resources.nodes > 1 and job.job_id not in seen.provided]
    due = [job for job in gangs if job.not_before_ms <= seen.snapshot.now_ms]
    for job in sorted(due, key=queue.edf_key)[:_MOST]:
        yield list(_wishes(job, seen, packing))


def _wishes(job: JobView, seen: SeenFleet, packing: Packing) -> Iterator[GangWish]:
    need, used = job.resources, used_gpus(seen.hosts)
    there: dict[tuple[str, str], dict[str, Domain]] = {}
    for node_id, place in packing.places.items():
        if seen.kept_for(node_id) in (None, job.job_id) and _could_have(job, place):
            domain = seen.domains.get(place.host.host_id, _UNSAID)
            there.setdefault((place.pool.name, place.kind), {})[node_id] = domain
    pools = {pool.name: pool for pool in seen.pools}
    for (name, _), nodes in sorted(there.items()):
        most_gpus = pools[name].most_gpus
        left = None if most_gpus is None else most_gpus - used.get(name, 0)
        if left is None or left >= need.nodes * need.gpus_min:
            yield GangWish(job.job_id, need.nodes, need.gpus_min, nodes, f"pool {name}", job.most_under_one)


def _could_have(job: JobView, place: OwnPlace) -> bool:
    """Whether the host could be one of its machines, if nothing was on it."""
    offer = _whole_cut(job, place)
    return (
        offer is not None
        and offer_fits(job.resources, offer)
        and is_for(job, offer)
        and offer.key not in job.avoided_offers | job.unreached_offers
        and job.caps.allows_hourly(job.resources.nodes * offer.price_per_hour.micros)
        and job.may_run_at(offer.provider)
    )


def _whole_cut(job: JobView, place: OwnPlace) -> Offer | None:
    every, gpus = kinds_of(place.host)[place.kind], job.resources.gpus_min
    return cut_of(place.pool, place.host, place.kind, gpus, every, gpus) if gpus <= len(every) else None
