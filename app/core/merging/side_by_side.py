"""Jobs that train side by side, as decisions see them: one job, their lead, and one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.core.merging.joined import joined
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.merge import MergeMode, MergeView
from app.core.model.run import PREPARED_RUN_STATES
from app.core.model.snapshot import JobView, RunView


def as_one(
    jobs: Sequence[JobView], runs: Sequence[RunView], merges: Sequence[MergeView]
) -> tuple[tuple[JobView, ...], tuple[RunView, ...]]:
    """The views with each open pair's lead standing for both, and one run where there are two. Order is kept.

    The run is the lead's, or the companion's when that is the last one to leave: until both are gone, the pair holds
    its GPUs and is not placed again, whatever state its lead is in.
    """
    shown = {job.job_id: job for job in jobs}
    held = {job_id: run for run in runs if run.state not in PREPARED_RUN_STATES for job_id in run.job_ids}
    seen = {run.run_id: run for run in runs}
    for merge in merges:
        if merge.mode is MergeMode.TOGETHER and {merge.lead_id, merge.companion_id} <= shown.keys():
            _join(merge, shown, held, seen)
    return tuple(shown.values()), tuple(seen.values())


def in_pairs(merges: Sequence[MergeView]) -> frozenset[str]:
    """The jobs that train side by side with another one, or are about to."""
    together = [merge for merge in merges if merge.mode is MergeMode.TOGETHER]
    return frozenset(job_id for merge in together for job_id in (merge.lead_id, merge.companion_id))


def _join(merge: MergeView, jobs: dict[str, JobView], held: Mapping[str, RunView], runs: dict[str, RunView]) -> None:
    lead, companion = jobs[merge.lead_id], jobs[merge.companion_id]
    first, second = held.get(merge.lead_id), held.get(merge.companion_id)
    leaves_last = first is None and second is not None and lead.state in PLACEABLE_JOB_STATES
    both = joined(lead, companion, merge)
    jobs[lead.job_id] = replace(both, state=companion.state) if leaves_last else both
    if first is not None and second is not None:
        del runs[second.run_id]
    run = first or second
    if run is not None:
        runs[run.run_id] = replace(run, job_ids=(lead.job_id, companion.job_id))
