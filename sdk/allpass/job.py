"""The handle of a job that was submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from allpass import notebook
from allpass.changes import KEEP, Keep, job_update
from allpass.errors import JobFailed
from allpass.points import Points
from allpass.wire import jobs as wire
from allpass.wire.controls import Explanation

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.flows import Downloaded
    from allpass.wire.standby import Standby


class Job:
    """One job, one log, one bill. Every method asks the service; the handle itself holds only the id."""

    def __init__(self, job_id: str, client: Client) -> None:
        self.id = job_id
        self._client = client

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def _repr_html_(self) -> str:
        return notebook.job(self.info(), list(self._client.metrics(self.id)))

    def info(self) -> wire.Job:
        """Everything the service tells about the job now."""
        return self._client.get_job(self.id)

    def status(self) -> wire.JobStatus:
        """queued, starting, running, checkpointing, waiting, paused, succeeded, failed or cancelled."""
        return self.info().status

    def wait(
        self,
        timeout: float | timedelta | None = None,
        *,
        poll_s: float = 2.0,
        check: bool = False,
        progress: Callable[[wire.Job], object] | None = None,
    ) -> wire.Job:
        """The job once it has ended. `timeout` is seconds or a timedelta: then WaitTimeout, and the job goes on.

        With `check`, a job that failed or was cancelled raises JobFailed. Outages of the server of up to five minutes
        are waited out. `progress` is called with the job each time it was asked about; in a notebook, where none is
        given, the cell shows it.
        """
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        told = progress or notebook.live()

        def look(job: wire.Job) -> bool:
            if told is not None:
                told(job)
            return False

        ended = self._client.wait(self.id, timeout_s=timeout_s, poll_s=poll_s, until=look if told else None)
        if told is not None:
            told(ended)
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

    def metrics(self) -> Points:
        """What the script reported, by step: an iterator, a table in a notebook, and `.frame()` for pandas."""
        return Points(self._client.metrics(self.id))

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

    def pause(self, *, lose_steps: bool = False) -> wire.Job:
        """Save and stop until resumed: `checkpointing`, then `paused`. Raises Conflict if the job has ended, and, with
        the code `steps_would_be_lost`, if its checkpoints are not kept: `lose_steps` pauses it all the same."""
        return self._client.pause_job(self.id, lose_steps=lose_steps)

    def resume(self) -> wire.Job:
        """Go on from the newest checkpoint. Raises Conflict while a limit that would stop the job again is reached."""
        return self._client.resume_job(self.id)

    def resize(self, gpus: int | None = None, *, nodes: int | None = None) -> wire.Job:
        """Go on with so many GPUs, from one of the next steps, or on so many machines, once all of them are there: one
        of the two, where its training can change them (the built-in fine-tuning can). A job that does not run begins
        with so many. Returns at once. Raises Conflict with the code `not_elastic` or `no_room` where that cannot be,
        and nothing has changed."""
        return self._client.resize_job(self.id, gpus, nodes=nodes)

    def stand_by(self, until: str, *, lose_steps: bool = False) -> Standby:
        """Save, and lend its GPUs to spot jobs until then ("8h" from now, or an instant with its zone); it goes on
        there afterwards by itself. Raises Conflict with the code `not_lendable` where they cannot be lent."""
        return self._client.begin_standby(self.id, until, lose_steps=lose_steps)

    def end_standby(self) -> Standby:
        """Go on now, as soon as its GPUs are free. Raises Conflict if it does not stand by."""
        return self._client.end_standby(self.id)

    def update(
        self,
        *,
        soft_deadline: str | timedelta | datetime | None = None,
        max_cost_usd: float | Keep | None = KEEP,
        max_duration: float | timedelta | Keep | None = KEEP,
        max_hourly_usd: float | Keep | None = KEEP,
        max_wait: float | timedelta | Keep | None = KEEP,
        retries: int | Keep | None = KEEP,
        labels: Mapping[str, str | None] | None = None,
    ) -> wire.Job:
        """Change what is given; the rest stays. None takes a limit away, and as a label's value that label.

        A deadline such as "6hr" counts from now. Raises Conflict if the job has ended.
        """
        change = job_update(
            soft_deadline=soft_deadline,
            max_cost_usd=max_cost_usd,
            max_duration=max_duration,
            max_hourly_usd=max_hourly_usd,
            max_wait=max_wait,
            retries=retries,
            labels=labels,
        )
        return self._client.update_job(self.id, change)

    def explain(self) -> Explanation:
        """Why the job is where it is, what comes next, and whether it will meet its deadline."""
        return self._client.explain_job(self.id)

    def download(self, directory: str | Path) -> list[Downloaded]:
        """Download all artifacts into `directory`: each verified by its sha256, and there whole or not at all."""
        return list(self._client.download(self.id, directory))
