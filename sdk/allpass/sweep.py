"""The handle of a sweep: many parameter sets of one app, seen, cancelled and compared together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, overload

from allpass.errors import Conflict, InvalidInput
from allpass.job import Job
from allpass.wire import jobs as wire

if TYPE_CHECKING:
    from allpass.client import Client

Goal = Literal["min", "max"]


@dataclass(frozen=True)
class SweepRow:
    """One job of a sweep. `metrics` are the last values that it reported; `cost` is micro-dollars."""

    job_id: str
    parameters: dict[str, Any]
    status: wire.JobStatus
    step: int
    total_steps: int | None
    cost: int
    metrics: dict[str, float]


class Sweep(Sequence[Job]):
    """The jobs of one sweep, in the order of their parameter sets."""

    def __init__(self, sweep_id: str, jobs: Sequence[Job], client: Client) -> None:
        self.id = sweep_id
        self._jobs = tuple(jobs)
        self._client = client

    def __repr__(self) -> str:
        return f"<Sweep {self.id} of {len(self)} jobs>"

    def _repr_html_(self) -> str:
        from allpass import notebook

        return notebook.sweep(self.id, self.table())

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, index: int) -> Job: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Job, ...]: ...

    def __getitem__(self, index: int | slice) -> Job | tuple[Job, ...]:
        return self._jobs[index]

    def wait(
        self, timeout: float | timedelta | None = None, *, poll_s: float = 2.0, check: bool = False
    ) -> list[wire.Job]:
        """All jobs, once all have ended; `timeout` is for the whole sweep. With `check`, the first failure raises."""
        clock = self._client._clock
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        end = None if timeout_s is None else clock() + timeout_s
        return [
            job.wait(None if end is None else max(0.0, end - clock()), poll_s=poll_s, check=check) for job in self._jobs
        ]

    def cancel(self) -> list[Job]:
        """Stop every job that has not ended; the ones that were stopped by this."""
        stopped = []
        for job in self._jobs:
            try:
                job.cancel()
            except Conflict:
                continue  # it ended on its own, which is what was wanted
            stopped.append(job)
        return stopped

    def table(self) -> list[SweepRow]:
        """Parameters, state, cost and last metrics of every job, in the sweep's order."""
        return [
            SweepRow(
                job_id=job.id,
                parameters=job.parameters if isinstance(job.parameters, dict) else {},
                status=job.status,
                step=job.step,
                total_steps=job.total_steps,
                cost=job.cost,
                metrics=self._client.last_metrics(job.id),
            )
            for job in self._client.get_sweep(self.id).jobs
        ]

    def best(self, metric: str, goal: Goal = "min") -> Job:
        """The job whose last reported `metric` is best: that is the model it left. The first one wins a tie.

        Values that are not numbers never win. Raises InvalidInput if no job reported the metric.
        """
        best = best_row(self.table(), metric, goal)
        return next(job for job in self._jobs if job.id == best.job_id)


def best_row(rows: Sequence[SweepRow], metric: str, goal: Goal = "min") -> SweepRow:
    """The row of the best job, as `Sweep.best` says."""
    if goal not in ("min", "max"):
        raise InvalidInput(f"goal: {goal!r} is neither 'min' nor 'max'", hint='goal="min"')
    known = [row for row in rows if not math.isnan(row.metrics.get(metric, math.nan))]
    if not known:
        names = ", ".join(sorted({name for row in rows for name in row.metrics})) or "none yet"
        raise InvalidInput(f"metric: no job of the sweep has reported {metric!r} (reported: {names})")
    sign = 1 if goal == "min" else -1
    return min(known, key=lambda row: sign * row.metrics[metric])
