"""What a simulation knows of a job that has not ended, and of its stays on machines."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.model.snapshot import JobView, RunView
from app.simulator.outcomes import JobOutcome
from app.simulator.scenario import Task


@dataclass(slots=True)
class SimulatedRun:
    """A stay of a job, or of two that are merged, on GPUs of a machine."""

    view: RunView
    gpus: tuple[int, ...]
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
