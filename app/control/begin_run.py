"""A run begins: it holds its GPUs, and its job belongs to it. So do the runs that share its process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.model.job import JobState
from app.core.model.node import Tier
from app.core.model.run import RunPurpose
from app.db.decisions.enactment import PlacedJob
from app.db.decisions.placements import NewRun
from app.db.transitions import Entry, Event
from app.ports.clock import IdSource


@dataclass(frozen=True, slots=True)
class Held:
    """GPUs that are given to a run. `layout`: how it is to be laid out on them; None: nobody says."""

    node_id: str
    tier: Tier
    gpu_indices: Sequence[int]
    layout: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """Runs to be, and what their jobs are told."""

    runs: tuple[NewRun, ...]
    told: tuple[Entry, ...]


def begin_run(
    ids: IdSource,
    job: PlacedJob,
    beside: Sequence[PlacedJob],
    held: Held,
    reason: str,
    facts: Mapping[str, object],
    purpose: RunPurpose,
) -> Begun:
    """Of jobs that share a process each gets a run, in one transaction, with an epoch of its own, on the same GPUs.
    `beside`: those that do, with this job."""
    first, told = _begin(ids, job, held, reason, facts, purpose=purpose)
    runs, entries = [first], [told]
    for other in beside:
        shared = {**facts, "companion_of": first.run_id}
        run, told = _begin(ids, other, held, reason, shared, companion_of=first.run_id)
        runs.append(run)
        entries.append(told)
    return Begun(tuple(runs), tuple(entries))


def begin_gang(ids: IdSource, job: PlacedJob, held: Sequence[Held], reason: str) -> Begun:
    """Of a job on several machines each has a run, with an epoch of its own. The one that leads holds the job's, which
    is the last of them: what the others write never counts. On one machine it is the run of any job."""
    count = len(held)
    leader = replace(job, next_epoch=job.next_epoch + count - 1)
    first, told = _begin(ids, leader, held[0], reason, {"nodes": [one.node_id for one in held]})
    if count == 1:
        return Begun((first,), (told,))
    runs = [replace(first, node_rank=0)]
    for rank, one in enumerate(held[1:], start=1):
        member, _ = _begin(ids, replace(job, next_epoch=job.next_epoch + rank - 1), one, reason, {})
        runs.append(replace(member, member_of=first.run_id, node_rank=rank))
    return Begun(tuple(runs), (told,))


def _begin(
    ids: IdSource,
    job: PlacedJob,
    held: Held,
    reason: str,
    facts: Mapping[str, object],
    *,
    companion_of: str | None = None,
    purpose: RunPurpose = RunPurpose.TRAIN,
) -> tuple[NewRun, Entry]:
    """The job will belong to the run: its epoch is the run's, and every older writer is fenced."""
    run = NewRun(
        run_id=ids.new("run"),
        allocation_id=ids.new("aloc"),
        project_id=job.project_id,
        job_id=job.job_id,
        epoch=job.next_epoch,
        node_id=held.node_id,
        tier=held.tier,
        gpu_indices=held.gpu_indices,
        companion_of=companion_of,
        purpose=purpose,
        layout=held.layout,
    )
    told = reason if job.plan is None else f"{reason}; {job.plan}"
    event = Event(JobState.STARTING, told, {"run_id": run.run_id, "node_id": run.node_id, "epoch": run.epoch, **facts})
    return run, Entry(job.job_id, event, begins=run.epoch)
