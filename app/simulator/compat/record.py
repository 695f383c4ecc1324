"""One job in a replay: what has happened to it so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from app.simulator.traces.job import TraceJob


@dataclass(frozen=True, slots=True)
class CompatOutcome:
    """What became of a job. Whole seconds; `start_s` and `finish_s` are None if it never started, or never ended.

    `executed_s` is the time that it held its GPUs. `resumptions` counts its starts, the first one too, under the
    schedules that preempt.
    """

    job_id: str
    submit_s: int
    start_s: int | None
    finish_s: int | None
    executed_s: int
    preemptions: int
    resumptions: int

    @property
    def jct_s(self) -> int | None:
        """From submission to end."""
        return None if self.finish_s is None else self.finish_s - self.submit_s


class JobRecord:
    """A job's state. `place` is its place in the order of arrival."""

    __slots__ = (
        "duration_s",
        "executed_s",
        "finish_s",
        "gpus",
        "job",
        "place",
        "preemptions",
        "queue",
        "rank",
        "resumptions",
        "running",
        "start_s",
        "submit_s",
    )

    def __init__(self, job: TraceJob, place: int) -> None:
        self.job = job
        self.place = place
        self.submit_s = int(job.submit_s)
        self.duration_s = int(job.duration_s)
        self.gpus = job.gpus
        self.start_s: int | None = None
        self.finish_s: int | None = None
        self.executed_s = 0
        self.preemptions = 0
        self.resumptions = 0
        self.running = False
        self.rank = 0  # among jobs of the same key: the order of the last plan
        self.queue = 0

    def resume(self, now_s: int) -> None:
        self.running = True
        self.resumptions += 1
        if self.start_s is None:
            self.start_s = now_s

    def preempt(self) -> None:
        self.running = False
        self.preemptions += 1

    def finish(self, now_s: int) -> None:
        self.running = False
        self.finish_s = now_s

    def outcome(self) -> CompatOutcome:
        return CompatOutcome(
            self.job.job_id,
            self.submit_s,
            self.start_s,
            self.finish_s,
            self.executed_s,
            self.preemptions,
            self.resumptions,
        )


def arrivals_of(records: list[JobRecord]) -> Iterator[tuple[int, list[JobRecord]]]:
    """The jobs that arrive in each second, in the order of the file."""
    for second, together in groupby(records, key=lambda record: record.submit_s):
        yield second, list(together)
