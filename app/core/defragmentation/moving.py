"""The move that a step of a defragmentation is, on the fleet as it is now."""

from __future__ import annotations

from app.core.defragmentation.deciding import PlannedRelease, ReleaseStep
from app.core.defragmentation.packing import Packing, own_cut_fits
from app.core.defragmentation.seen_fleet import SeenFleet
from app.core.model.plan import Migrate, MoveOut, RowVersions
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.pools import cut_of, free_of


def move_of(
    seen: SeenFleet, packing: Packing, release: PlannedRelease, step: ReleaseStep, told: str
) -> Migrate | MoveOut | None:
    """None: there is no room for it at this moment, or the job avoids the place. `told`: what it is part of."""
    snapshot = seen.snapshot
    job = next((one for one in snapshot.jobs if one.job_id == step.job_id), None)
    runs = [one for one in snapshot.runs if one.job_ids == (step.job_id,)]
    if job is None or len(runs) != 1:
        return None
    name = packing.names.get(step.target, step.target)
    why = f"leaves {release.name} for {name}, so that {release.reason} ({told})"
    place = packing.places.get(step.target)
    if place is None:
        return _onto_node(seen, job, runs[0], step, why)
    free = free_of(place.host, place.kind)
    if len(free) < step.gpus or not own_cut_fits(place, job, step.gpus):
        return None
    offer = cut_of(place.pool, place.host, place.kind, step.gpus, free, len(free))
    if offer.key in job.avoided_offers:
        return None
    gpus = tuple(range(job.resources.gpus_min))
    return MoveOut(job.job_id, runs[0].run_id, offer, gpus, why, _versions(job, runs[0]))


def _onto_node(seen: SeenFleet, job: JobView, run: RunView, step: ReleaseStep, why: str) -> Migrate | None:
    node = next((one for one in seen.snapshot.nodes if one.node_id == step.target), None)
    if node is None or len(node.free_gpus) < step.gpus:
        return None
    gpus = node.free_gpus[: step.gpus]
    return Migrate(job.job_id, run.run_id, node.node_id, gpus, why, _versions(job, run, node))


def _versions(job: JobView, run: RunView, *nodes: NodeView) -> RowVersions:
    rows = [(job.job_id, job.row_version), (run.run_id, run.row_version)]
    return tuple(sorted([*rows, *((node.node_id, node.row_version) for node in nodes)]))
