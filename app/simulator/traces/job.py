"""A trace: jobs with the instants at which they were submitted and the time that they run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter

from app.core.resizing import MOST_GPUS as MOST_OF_A_RANGE
from app.errors import InvalidInput

BATCH = "batch"
INTERACTIVE = "interactive"
KINDS = (BATCH, INTERACTIVE)
MOST_S = 10**10  # some three hundred years
MOST_GPUS = 100_000
USUAL_PARALLEL = 0.9  # [assumed]


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job. `duration_s` is the time that it runs for on the GPUs that it asks for, without any queueing.

    `deadline_s` counts from the submission; None means that the trace gives none. `line` is the job's line in the file
    that it was read from, 0 when there is none: two jobs that differ only in it are equal. One that never `saves`
    begins again wherever it is stopped, and so is not moved. `most_gpus`: of one that takes a range, which begins with
    `gpus`; of each of its steps `parallel` is shared by all GPUs, by Amdahl's law. None: exactly `gpus`.
    """

    job_id: str
    submit_s: float
    duration_s: float
    gpus: int
    deadline_s: float | None = None
    kind: str = BATCH
    user: str = ""
    gpu_type: str = ""
    state: str = ""
    job_type: str = ""
    saves: bool = True
    most_gpus: int | None = None
    parallel: float = USUAL_PARALLEL
    line: int = field(default=0, compare=False)

    @property
    def gpu_seconds(self) -> float:
        return self.duration_s * self.gpus


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order of (submit_s, job_id). `left_out` counts rows of its source that are no jobs to simulate."""

    name: str
    jobs: tuple[TraceJob, ...]
    left_out: int = 0

    @staticmethod
    def of(name: str, jobs: Iterable[TraceJob], left_out: int = 0) -> Trace:
        """A trace of these jobs, in whatever order they come."""
        return Trace(name, tuple(sorted(jobs, key=attrgetter("submit_s", "job_id"))), left_out)

    @property
    def span_s(self) -> float:
        """From the first submission to the last."""
        return self.jobs[-1].submit_s - self.jobs[0].submit_s if self.jobs else 0.0

    @property
    def has_ranges(self) -> bool:
        """Whether a job takes a range of GPUs."""
        return any(job.most_gpus is not None for job in self.jobs)

    def cut(self, *, start_s: float = 0.0, most_jobs: int | None = None) -> Trace:
        """The first `most_jobs` jobs submitted at `start_s` or later, with times counted from `start_s`."""
        if start_s == 0.0 and most_jobs is None:
            return self
        kept = [job for job in self.jobs if job.submit_s >= start_s][:most_jobs]
        return Trace(self.name, tuple(_moved(job, -start_s) for job in kept), self.left_out)


def check_jobs(trace: Trace) -> None:
    """Raises InvalidInput for jobs that cannot be simulated. Those of a file are checked as they are read."""
    seen: set[str] = set()
    for job in trace.jobs:
        wrong = _wrong(job)
        if wrong is None and job.job_id in seen:
            wrong = "job_id: there is another job of this id"
        if wrong is not None:
            raise InvalidInput(f"trace {trace.name!r}, job {job.job_id!r}: {wrong}", param="trace")
        seen.add(job.job_id)
    if not seen:
        raise InvalidInput(f"trace {trace.name!r}: holds no job", param="trace")


def _wrong(job: TraceJob) -> str | None:
    times = {"submit_s": job.submit_s, "duration_s": job.duration_s, "deadline_s": job.deadline_s}
    for name, value in times.items():
        if value is None and name == "deadline_s":
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_S
        if not is_number or (value == 0 and name != "submit_s"):
            return f"{name}: {value!r} is no time; give seconds above 0 ({MOST_S:,} at most)"
    if not isinstance(job.gpus, int) or isinstance(job.gpus, bool) or not 1 <= job.gpus <= MOST_GPUS:
        return f"gpus: {job.gpus!r} is no number of GPUs; give a whole number from 1 to {MOST_GPUS:,}"
    if not isinstance(job.job_id, str) or not job.job_id:
        return "job_id: is no text"
    if job.kind not in KINDS:
        return f"kind: {job.kind!r} is none of {', '.join(KINDS)}"
    return _wrong_range(job)


def _wrong_range(job: TraceJob) -> str | None:
    if job.most_gpus is not None and not job.gpus <= job.most_gpus <= MOST_OF_A_RANGE:
        return f"most_gpus: {job.most_gpus!r} ends no range from {job.gpus}; give {MOST_OF_A_RANGE} at most, or None"
    if not 0 <= job.parallel <= 1:
        return f"parallel: {job.parallel!r} is no part of a step; give a number from 0 to 1"
    return None


def _moved(job: TraceJob, by_s: float) -> TraceJob:
    return replace(job, submit_s=job.submit_s + by_s)
