"""On how many machines a job is, and is to be (ADR 0131). Pure.

A wish is kept beside what its run began on (`nodes_wanted`), until it has begun on so many. Part of `app.core.gangs`,
which decides when that is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from app.core.gang_offers import COMING
from app.core.model.snapshot import JobView, NodeView, Snapshot

WANTED = "nodes_wanted"  # of a job's stored resources


def is_gang(job: JobView) -> bool:
    """Whether the job runs on several machines at once."""
    return job.resources.nodes > 1


def concerns_gangs(job: JobView) -> bool:
    """Whether it does, or is to."""
    return is_gang(job) or wants_more(job)


def wants_more(job: JobView) -> bool:
    """Whether its owner wants it on more machines than it began on."""
    wanted = job.resources.nodes_wanted
    return wanted is not None and wanted > job.resources.nodes


def as_wanted(job: JobView) -> JobView:
    """As it is to be once it has as many machines as its owner wants."""
    wanted = job.resources.nodes_wanted
    if wanted is None:
        return job
    return replace(job, resources=replace(job.resources, nodes=wanted, nodes_wanted=None))


def with_single_ones(snapshot: Snapshot, have_machines: Collection[str]) -> Snapshot:
    """A job that is to go on on one machine, and has none any more, is a job like any other."""
    if all(job.resources.nodes_wanted != 1 for job in snapshot.jobs):
        return snapshot
    jobs = (
        as_wanted(job) if job.resources.nodes_wanted == 1 and job.job_id not in have_machines else job
        for job in snapshot.jobs
    )
    return replace(snapshot, jobs=tuple(jobs))


def no_longer_wanted(snapshot: Snapshot, rented: Mapping[str, str]) -> list[NodeView]:
    """Of machines that were rented so that their jobs are on several: those that have not come, and whose job trains
    on one and wants no more. `rented`: by machine, for which job."""
    held = {job_id for run in snapshot.runs for job_id in run.job_ids}
    single = {job.job_id for job in snapshot.jobs if job.job_id in held and not concerns_gangs(job)}
    taken = {run.node_id for run in snapshot.runs}
    its = (node for node in snapshot.nodes if rented.get(node.node_id) in single and node.node_id not in taken)
    return [node for node in its if node.state in COMING]


def with_nodes(asks: Mapping[str, Any], nodes: int) -> dict[str, Any]:
    """Stored resources, of so many machines and with no wish for others."""
    plain = {name: value for name, value in asks.items() if name not in ("nodes", WANTED)}
    return plain | ({"nodes": nodes} if nodes > 1 else {})


def asks_as_wanted(asks: Mapping[str, Any]) -> dict[str, Any] | None:
    """Stored resources of a job that has no machines any more; None where it wants no other number of them."""
    wanted = asks.get(WANTED)
    return with_nodes(asks, wanted) if type(wanted) is int else None
