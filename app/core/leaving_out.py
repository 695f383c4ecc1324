"""A snapshot without some of its jobs and nodes: what one of them does to a decision is done to nobody else.

What is left out stays where it is. A job goes with its runs, and with those it is merged with; their nodes stay, and
the GPUs that they hold stay taken, so that nothing of it looks free, idle, or like a job that has no run. Beside a job
that may want to be alone nobody is placed. A node goes with whatever runs on it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from app.core.model.job import NO_AFFINITY
from app.core.model.snapshot import NodeView, Snapshot


def leave_out(
    snapshot: Snapshot, *, job_ids: Collection[str] = (), node_ids: Collection[str] = (), offers: Collection[str] = ()
) -> tuple[Snapshot, frozenset[str]]:
    """The snapshot without these (offers by their key), and all the jobs that went with them."""
    if not job_ids and not node_ids and not offers:
        return snapshot, frozenset()
    nodes = frozenset(node_ids)
    gone = _reached(snapshot, frozenset(job_ids), nodes)
    kept = replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if job.job_id not in gone),
        runs=tuple(run for run in snapshot.runs if run.node_id not in nodes and gone.isdisjoint(run.job_ids)),
        nodes=_nodes(snapshot, gone, nodes),
        offers=tuple(offer for offer in snapshot.offers if offer.key not in offers),
        merges=tuple(merge for merge in snapshot.merges if gone.isdisjoint((merge.lead_id, merge.companion_id))),
    )
    return kept, gone


def _nodes(snapshot: Snapshot, gone: frozenset[str], node_ids: frozenset[str]) -> tuple[NodeView, ...]:
    """A job that cannot be read (it is no job of the snapshot) may ask for anything."""
    harmless = {job.job_id for job in snapshot.jobs if job.affinity == NO_AFFINITY}
    shut = {run.node_id for run in snapshot.runs if any(one in gone - harmless for one in run.job_ids)}
    kept = (node for node in snapshot.nodes if node.node_id not in node_ids)
    return tuple(replace(node, free_gpus=()) if node.node_id in shut else node for node in kept)


def together_with(snapshot: Snapshot, job_ids: Collection[str]) -> frozenset[str]:
    """These jobs, and those that share a run or a merge with them."""
    return _reached(snapshot, frozenset(job_ids), frozenset())


def _reached(snapshot: Snapshot, job_ids: frozenset[str], node_ids: frozenset[str]) -> frozenset[str]:
    gone = set(job_ids)
    for run in snapshot.runs:
        if run.node_id in node_ids:
            gone.update(run.job_ids)
    groups = [set(run.job_ids) for run in snapshot.runs if len(run.job_ids) > 1]
    groups += [{merge.lead_id, merge.companion_id} for merge in snapshot.merges]
    while True:
        more = {job_id for group in groups if not gone.isdisjoint(group) for job_id in group} - gone
        if not more:
            return frozenset(gone)
        gone |= more
