"""Handles for what was submitted: `Job` and `Sweep`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from allpass.changes import KEEP, Keep, job_update
from allpass.errors import Conflict, InvalidInput, JobFailed
from allpass.wire import jobs as wire
from allpass.wire.controls import Explanation

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.flows import Downloaded


class Job:
    """One job, one log, one bill. Every method asks the service; the handle itself holds only the id."""

    def __init__(self, job_id: str, client: Client) -> None:
        self.id = job_id
        self._client = client

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def info(self) -> wire.Job:
        """Everything the service tells about the job now."""
        return self._client.get_job(self.id)

    def status(self) -> wire.JobStatus:
        """queued, starting, running, checkpointing, waiting, paused, succeeded, failed or cancelled."""
        return self.info().status

    def wait(self, timeout: float | timedelta | None = None, *, poll_s: float = 2.0, check: bool = False) -> wire.Job:
        """The job once it has ended. `timeout` is seconds or a timedelta: then WaitTimeout, and the job goes on.

        With `check`, a job that failed or was cancelled raises JobFailed. Outages of the server of up to five minutes
        are waited out.
        """
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        ended = self._client.wait(self.id, timeout_s=timeout_s, poll_s=poll_s)
        if check and ended.status != "succeeded":
            raise JobFailed(ended)
        return ended

    def logs(self, follow: bool = False) -> Iterator[str]:
        """Lines of the log, without line ends. `follow` goes on until the job has ended; lost connections resume."""
        rest = ""
        for page in self._client.log_pages(self.id, follow=follow):
            *lines, rest = (rest + page.text).split("\n")
            yield from lines
        if rest:
            yield rest

    def metrics(self) -> Iterator[wire.MetricPoint]:
        """What the script reported, by step."""
        return self._client.metrics(self.id)

    def events(self, follow: bool = False) -> Iterator[wire.JobEvent]:
        """What happened to the job, oldest first."""
        return self._client.events(self.id, follow=follow)

    def checkpoints(self) -> Iterator[wire.Checkpoint]:
        """Committed checkpoints."""
        return self._client.checkpoints(self.id)

    def timeline(self) -> wire.Timeline:
        """Where the job has been, and what each stay cost."""
        return self._client.timeline(self.id)

    def cancel(self) -> wire.Job:
        """Stop the job for good. Raises Conflict if it has ended."""
        return self._client.cancel_job(self.id)

    def pause(self) -> wire.Job:
        """Save and stop until resumed: `checkpointing`, then `paused`. Raises Conflict if the job has ended."""
        return self._client.pause_job(self.id)

    def resume(self) -> wire.Job:
        """Go on from the newest checkpoint. Raises Conflict while a limit that would stop the job again is reached."""
        return self._client.resume_job(self.id)

    def update(
        self,
        *,
        soft_deadline: str | timedelta | datetime | None = None,
        max_cost_usd: float | Keep | None = KEEP,
        max_duration: float | timedelta | Keep | None = KEEP,
        labels: Mapping[str, str | None] | None = None,
    ) -> wire.Job:
        """Change what is given; the rest stays. None takes a limit away, and as a label's value that label.

        A deadline such as "6hr" counts from now. Raises Conflict if the job has ended.
        """
        change = job_update(
            soft_deadline=soft_deadline, max_cost_usd=max_cost_usd, max_duration=max_duration, labels=labels
        )
        return self._client.update_job(self.id, change)

    def explain(self) -> Explanation:
        """Why the job is where it is, what comes next, and whether it will meet its deadline."""
        return self._client.explain_job(self.id)

    def download(self, directory: str | Path) -> list[Downloaded]:
        """Download all artifacts into `directory`: each verified by its sha256, and there whole or not at all."""
        return list(self._client.download(self.id, directory))


class Sweep(Sequence[Job]):
    """The jobs of one sweep, in the order of their parameter sets."""

    def __init__(self, sweep_id: str, jobs: Sequence[Job]) -> None:
        self.id = sweep_id
        self._jobs = tuple(jobs)

    def __repr__(self) -> str:
        return f"<Sweep {self.id} of {len(self)} jobs>"

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
        if not self._jobs:
            return []
        clock = self._jobs[0]._client._clock
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

    def best(self, metric: str, goal: Literal["min", "max"] = "min") -> Job:
        """The job whose last reported `metric` is best: that is the model it left. The first one wins a tie.

        Values that are not numbers never win. Raises InvalidInput if no job reported the metric.
        """
        if goal not in ("min", "max"):
            raise InvalidInput(f"goal: {goal!r} is neither 'min' nor 'max'", hint='goal="min"')
        best: tuple[float, Job] | None = None
        known: set[str] = set()
        for job in self._jobs:
            last: float | None = None
            for point in job.metrics():
                known.update(point.values)
                last = point.values.get(metric, last)
            if last is None or math.isnan(last):
                continue
            score = last if goal == "min" else -last
            if best is None or score < best[0]:
                best = (score, job)
        if best is None:
            names = ", ".join(sorted(known)) or "none yet"
            raise InvalidInput(f"metric: no job of the sweep has reported {metric!r} (reported: {names})")
        return best[1]
