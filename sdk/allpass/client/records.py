"""The clients' methods about what a job leaves behind: events, log, metrics, checkpoints, files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from allpass import calls, flows, following
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.flows import Downloaded
from allpass.wire import jobs as wire_jobs
from allpass.wire.base import Page


class RecordMethods(Blocking):
    """Of `Client`."""

    def events(self, job_id: str, *, after: int = 0, follow: bool = False) -> Iterator[wire_jobs.JobEvent]:
        """Events after that position, oldest first, each once.

        `follow` goes on until the job has ended, and tells each event as it happens: from the server's stream, or by
        asking when there is none. A lost connection goes on where it was; none is skipped.
        """
        return self._each(following.events(self._protocol, job_id, after, follow, self._clock))

    def log_pages(self, job_id: str, *, position: str = "", follow: bool = False) -> Iterator[wire_jobs.LogPage]:
        """The log in pieces. `next_position` of the last piece goes on exactly there, in this process or another."""
        return self._each(flows.log_pages(self._protocol, job_id, position, follow, self._clock))

    def metrics(self, job_id: str) -> Iterator[wire_jobs.MetricPoint]:
        """What the job reported, by step."""
        return self._each(flows.metrics(self._protocol, job_id))

    def last_metrics(self, job_id: str) -> dict[str, float]:
        """The last value of each metric that the job reported."""
        return self._run(flows.last_metrics(self._protocol, job_id))

    def checkpoints(self, job_id: str) -> Iterator[wire_jobs.Checkpoint]:
        return self._each(flows.every(self._protocol, lambda cursor: calls.list_checkpoints(job_id, cursor)))

    def checkpoint_files(self, job_id: str, checkpoint_id: str) -> Iterator[wire_jobs.FileLink]:
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.list_checkpoint_files(job_id, checkpoint_id, cursor))
        )

    def artifacts(self, job_id: str) -> Iterator[wire_jobs.FileLink]:
        """The files that the job left, with links that expire."""
        return self._each(flows.every(self._protocol, lambda cursor: calls.list_artifacts(job_id, cursor)))

    def download(
        self,
        job_id: str,
        directory: str | Path,
        *,
        checkpoint_id: str | None = None,
        only: Callable[[str], bool] | None = None,
    ) -> Iterator[Downloaded]:
        """Download the job's artifacts (or a checkpoint's files), one by one as the iterator is advanced; `only` those
        whose path it says yes to.

        Each file is verified by its sha256 and appears whole or not at all; what is there already is not fetched.
        """
        links = _links_of(job_id, checkpoint_id)
        begin = None if self.transfer is None else self.transfer.begin
        return self._each(flows.download(self._protocol, links, Path(directory), _by_path(only), begin))

    def timeline(self, job_id: str) -> wire_jobs.Timeline:
        """Where the job has been, and what each stay cost."""
        return self._call(calls.get_timeline(job_id))

    def sizes(self, job_id: str) -> Iterator[wire_jobs.JobSize]:
        """How many GPUs its runs held from when to when, oldest first, and why that changed."""
        return self._each(flows.every(self._protocol, lambda cursor: calls.list_sizes(job_id, cursor)))


class AsyncRecordMethods(Awaited):
    """Of `AsyncClient`: as `RecordMethods`, awaited."""

    def events(self, job_id: str, *, after: int = 0, follow: bool = False) -> AsyncIterator[wire_jobs.JobEvent]:
        """As `Client.events`."""
        return self._each(following.events(self._protocol, job_id, after, follow, self._clock))

    def log_pages(self, job_id: str, *, position: str = "", follow: bool = False) -> AsyncIterator[wire_jobs.LogPage]:
        """As `Client.log_pages`."""
        return self._each(flows.log_pages(self._protocol, job_id, position, follow, self._clock))

    def metrics(self, job_id: str) -> AsyncIterator[wire_jobs.MetricPoint]:
        return self._each(flows.metrics(self._protocol, job_id))

    async def last_metrics(self, job_id: str) -> dict[str, float]:
        """As `Client.last_metrics`."""
        return await self._run(flows.last_metrics(self._protocol, job_id))

    def checkpoints(self, job_id: str) -> AsyncIterator[wire_jobs.Checkpoint]:
        return self._each(flows.every(self._protocol, lambda cursor: calls.list_checkpoints(job_id, cursor)))

    def checkpoint_files(self, job_id: str, checkpoint_id: str) -> AsyncIterator[wire_jobs.FileLink]:
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.list_checkpoint_files(job_id, checkpoint_id, cursor))
        )

    def artifacts(self, job_id: str) -> AsyncIterator[wire_jobs.FileLink]:
        return self._each(flows.every(self._protocol, lambda cursor: calls.list_artifacts(job_id, cursor)))

    def download(
        self,
        job_id: str,
        directory: str | Path,
        *,
        checkpoint_id: str | None = None,
        only: Callable[[str], bool] | None = None,
    ) -> AsyncIterator[Downloaded]:
        """As `Client.download`."""
        links = _links_of(job_id, checkpoint_id)
        return self._each(flows.download(self._protocol, links, Path(directory), _by_path(only)))

    async def timeline(self, job_id: str) -> wire_jobs.Timeline:
        return await self._call(calls.get_timeline(job_id))

    def sizes(self, job_id: str) -> AsyncIterator[wire_jobs.JobSize]:
        """As `Client.sizes`."""
        return self._each(flows.every(self._protocol, lambda cursor: calls.list_sizes(job_id, cursor)))


def _links_of(job_id: str, checkpoint_id: str | None) -> Callable[[str | None], calls.Call[Page[wire_jobs.FileLink]]]:
    if checkpoint_id is None:
        return lambda cursor: calls.list_artifacts(job_id, cursor)
    return lambda cursor: calls.list_checkpoint_files(job_id, checkpoint_id, cursor)


def _by_path(only: Callable[[str], bool] | None) -> Callable[[wire_jobs.FileLink], bool] | None:
    return None if only is None else lambda link: only(link.path)
