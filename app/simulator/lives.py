"""What a simulation knows of a job that has not ended, and of its stays on machines."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.model.job import Caps, JobKind, JobState, Resources, StartRule
from app.core.model.snapshot import JobView, RunView
from app.simulator.outcomes import JobOutcome
from app.simulator.scenario import Task


@dataclass(slots=True)
class SimulatedRun:
    """A stay of a job, or of two that are merged, on GPUs of a machine. `held_from_ms`: since when it has these."""

    view: RunView
    gpus: tuple[int, ...]
    held_from_ms: int
    goes_on_to: SimulatedRun | None = None  # the target of a move that this run saves for
    kept_ms: int | None = None  # work that is safe if its machine dies; None: all that the job has done
    over: bool = False


@dataclass(slots=True)
class Life:
    """An unfinished job: what policies see of it, and what it really takes."""

    task: Task
    view: JobView
    outcome: JobOutcome
    work_ms: int  # from first step to last, as things stand
    predicted_ms: int | None
    run: SimulatedRun | None = None


def first_view(task: Task, max_wait_ms: int | None) -> JobView:
    """What policies see of a job as it is submitted: of one that takes a range of GPUs the least, as a number."""
    least, most = (task.gpus, task.gpus) if task.elastic is None else (task.elastic.least, task.elastic.most)
    return JobView(
        job_id=task.job_id,
        project_id=task.project,
        state=JobState.QUEUED,
        row_version=1,
        submitted_ms=task.submit_ms,
        deadline_ms=task.deadline_ms,
        resources=Resources(
            gpus_min=least,
            gpus_max=most,
            gpu_memory_bytes_min=0 if task.speeds is None else task.speeds.needs_bytes,
        ),
        kind=JobKind(task.kind),
        start=StartRule.AUTO,
        caps=Caps(max_wait_ms=max_wait_ms),
        total_run_ms=task.predicted_ms if task.known_after_ms == 0 else None,
        saves=task.saves,
        never_saves=not task.saves and task.own_saves_ms is None and task.known,
        priority_class=task.priority_class,
        speeds=None if task.speeds is None else task.speeds.seen,
    )
