"""The clients: `Client` for plain code, `AsyncClient` for asyncio. Same calls, same models, same errors.

    with Client() as client:
        for job in client.jobs(status="running"):
            print(job.id, job.step)

Both read where the server is from the environment or the configuration (see `allpass.config`) unless told. Tests of
your own code can pass `transport=httpx.MockTransport(handler)`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import httpx

from allpass import calls, flows
from allpass.access import AccessMethods, AsyncAccessMethods
from allpass.bundle import Bundle
from allpass.config import Connection, checked_url, find_connection
from allpass.errors import ConfigurationError
from allpass.flows import Downloaded
from allpass.http import (
    Answer,
    Emit,
    Flow,
    Item,
    ItemFlow,
    Pause,
    Protocol,
    Result,
    Retries,
    Send,
    Step,
    Store,
    httpx_timeout,
)
from allpass.numbers import AsyncNumberMethods, NumberMethods
from allpass.wire import apps as wire_apps
from allpass.wire import controls as wire_controls
from allpass.wire import jobs as wire_jobs
from allpass.wire.base import Page

if TYPE_CHECKING:
    from allpass.job import Job

DEFAULT_TIMEOUT_S = 30.0
# A proxy from the environment is never asked for this very machine. None means: the client's own transport.
_NO_PROXY: dict[str, None] = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}


class Client(AccessMethods, NumberMethods):
    """Speaks to one Allpass server, with blocking I/O. Threads may share it. Close it, or use it as a context.

    `url` and `api_key` go together; without them the configuration is searched. `timeout_s` bounds every wait for the
    network. `sleep` and `clock` (seconds, monotonic) are what waits are made of.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._protocol = Protocol(_connection(url, api_key), timeout_s, retries or Retries())
        self._http = httpx.Client(transport=transport, mounts=_NO_PROXY, follow_redirects=False)
        self._sleep, self._clock = sleep, clock
        self._finalizer = weakref.finalize(self, self._http.close)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._protocol.connection.url

    def close(self) -> None:
        """Give the connections back. Closing twice is harmless."""
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Apps and code

    def upload(self, bundle: Bundle) -> bool:
        """Make sure the service has this bundle. False if it had it already, and nothing was sent."""
        return self._run(flows.upload(self._protocol, bundle, key=new_key()))

    def register_app(self, request: wire_apps.AppRequest) -> wire_apps.App:
        """Register an app: the version that exists if nothing changed, else the next one."""
        return self._call(calls.register_app(request, key=new_key()))

    def apps(self) -> Iterator[wire_apps.App]:
        """Every app of the project."""
        return self._each(flows.every(self._protocol, calls.list_apps))

    def get_app(self, app_id: str) -> wire_apps.App:
        return self._call(calls.get_app(app_id))

    # Jobs

    def submit_job(self, request: wire_jobs.JobRequest, *, idempotency_key: str | None = None) -> wire_jobs.Job:
        """Submit one job. Repeating a call with the same `idempotency_key` gives the job that exists."""
        return self._call(calls.submit_job(request, key=idempotency_key or new_key()))

    def submit_sweep(self, request: wire_jobs.SweepRequest, *, idempotency_key: str | None = None) -> wire_jobs.Sweep:
        """Submit one job per parameter set, all or none."""
        return self._call(calls.submit_sweep(request, key=idempotency_key or new_key()))

    def get_sweep(self, sweep_id: str) -> wire_jobs.Sweep:
        return self._call(calls.get_sweep(sweep_id))

    def jobs(
        self,
        *,
        status: str | None = None,
        app: str | None = None,
        label: str | None = None,
        name: str | None = None,
        submitted_after: datetime | None = None,
        submitted_before: datetime | None = None,
    ) -> Iterator[wire_jobs.Job]:
        """Jobs of the project, newest first. `label` is `key=value`, `name` a part of the name in any case; times
        are instants with their zone, from `submitted_after` on and before `submitted_before`."""
        listed = partial(
            calls.list_jobs,
            status=status,
            app=app,
            label=label,
            name=name,
            submitted_after=submitted_after,
            submitted_before=submitted_before,
        )
        return self._each(flows.every(self._protocol, listed))

    def get_job(self, job_id: str) -> wire_jobs.Job:
        return self._call(calls.get_job(job_id))

    def job(self, job_id: str) -> Job:
        """A handle for a job, without asking whether it exists."""
        from allpass.job import Job  # job.py needs this module

        return Job(job_id, self)

    def cancel_job(self, job_id: str) -> wire_jobs.Job:
        """Stop the job for good. Cancelling one that has ended is a Conflict."""
        return self._call(calls.cancel_job(job_id, key=new_key()))

    def pause_job(self, job_id: str) -> wire_jobs.Job:
        """Save and stop the job until it is resumed; `checkpointing` until it has saved. Conflict if it has ended."""
        return self._call(calls.pause_job(job_id, key=new_key()))

    def resume_job(self, job_id: str) -> wire_jobs.Job:
        """Let a paused job go on. Conflict if it has ended, or its limit would stop it again (`param` names it)."""
        return self._call(calls.resume_job(job_id, key=new_key()))

    def update_job(self, job_id: str, change: wire_controls.JobUpdate) -> wire_jobs.Job:
        """Change deadline, limits or labels of a job that is not over; see `allpass.changes.job_update`."""
        return self._call(calls.update_job(job_id, change))

    def explain_job(self, job_id: str) -> wire_controls.Explanation:
        """Why the job is where it is, what comes next, and whether it will meet its deadline."""
        return self._call(calls.explain_job(job_id))

    def wait(self, job_id: str, *, timeout_s: float | None = None, poll_s: float = 2.0) -> wire_jobs.Job:
        """The job once it has ended; WaitTimeout if that takes longer than `timeout_s`."""
        return self._run(flows.wait(self._protocol, job_id, timeout_s, poll_s, self._clock))

    # What can be read of a job

    def events(self, job_id: str, *, after: int = 0, follow: bool = False) -> Iterator[wire_jobs.JobEvent]:
        """Events after that position, oldest first; `follow` goes on until the job has ended."""
        return self._each(flows.events(self._protocol, job_id, after, follow, self._clock))

    def log_pages(self, job_id: str, *, position: str = "", follow: bool = False) -> Iterator[wire_jobs.LogPage]:
        """The log in pieces. `next_position` of the last piece goes on exactly there, in this process or another."""
        return self._each(flows.log_pages(self._protocol, job_id, position, follow, self._clock))

    def metrics(self, job_id: str) -> Iterator[wire_jobs.MetricPoint]:
        """What the job reported, by step."""
        return self._each(flows.metrics(self._protocol, job_id))

    def checkpoints(self, job_id: str) -> Iterator[wire_jobs.Checkpoint]:
        return self._each(flows.every(self._protocol, lambda cursor: calls.list_checkpoints(job_id, cursor)))

    def checkpoint_files(self, job_id: str, checkpoint_id: str) -> Iterator[wire_jobs.FileLink]:
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.list_checkpoint_files(job_id, checkpoint_id, cursor))
        )

    def artifacts(self, job_id: str) -> Iterator[wire_jobs.FileLink]:
        """The files that a finished job left in its output directory, with links that expire."""
        return self._each(flows.every(self._protocol, lambda cursor: calls.list_artifacts(job_id, cursor)))

    def download(self, job_id: str, directory: str | Path, *, checkpoint_id: str | None = None) -> Iterator[Downloaded]:
        """Download the job's artifacts (or a checkpoint's files), one by one as the iterator is advanced.

        Each file is verified by its sha256 and appears whole or not at all; what is there already is not fetched.
        """
        return self._each(flows.download(self._protocol, _links_of(job_id, checkpoint_id), Path(directory)))

    def timeline(self, job_id: str) -> wire_jobs.Timeline:
        """Where the job has been, and what each stay cost."""
        return self._call(calls.get_timeline(job_id))

    # The service

    def nodes(self, *, include_gone: bool = False) -> Iterator[wire_jobs.Node]:
        """Machines that are paid for now; with `include_gone` also those that were."""
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.list_nodes(cursor, include_gone=include_gone))
        )

    def health(self, *, ready: bool = False) -> wire_jobs.Health:
        """Whether the server lives; with `ready`, whether it can take jobs."""
        return self._call(calls.get_health(ready=ready))

    # Steps, with blocking I/O

    def _call(self, call: calls.Call[calls.Reply]) -> calls.Reply:
        return self._run(self._protocol.exchange(call))

    def _run(self, flow: Flow[Result]) -> Result:
        try:
            step = next(flow)
            while True:
                try:
                    result = self._perform(step)
                except (httpx.TransportError, OSError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as end:
            finished: Result = end.value
            return finished

    def _each(self, flow: ItemFlow[Item]) -> Iterator[Item]:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Emit):
                    yield step.item
                    step = flow.send(None)
                    continue
                try:
                    result = self._perform(step)
                except (httpx.TransportError, OSError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration:
            return
        finally:
            flow.close()

    def _perform(self, step: Step) -> Answer | None:
        if isinstance(step, Pause):
            self._sleep(step.seconds)
            return None
        if isinstance(step, Store):
            return self._store(step)
        return _answer(self._http.send(_request(self._http, step)))

    def _store(self, step: Store) -> Answer:
        with self._http.stream("GET", step.url, timeout=httpx_timeout(step.timeout_s)) as response:
            if response.status_code != 200:
                response.read()
                return _answer(response)
            try:
                step.sink.open()
                for chunk in response.iter_bytes():
                    step.sink.write(chunk)
                step.sink.commit()
            finally:
                step.sink.discard()
        return Answer(200, response.headers, b"")


class AsyncClient(AsyncAccessMethods, AsyncNumberMethods):
    """`Client` for asyncio: the same methods, awaited; lists are asynchronous iterators."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._protocol = Protocol(_connection(url, api_key), timeout_s, retries or Retries())
        self._http = httpx.AsyncClient(transport=transport, mounts=_NO_PROXY, follow_redirects=False)
        self._clock = clock

    @property
    def url(self) -> str:
        """The server's address."""
        return self._protocol.connection.url

    async def aclose(self) -> None:
        """Give the connections back. Closing twice is harmless."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def upload(self, bundle: Bundle) -> bool:
        """As `Client.upload`."""
        return await self._run(flows.upload(self._protocol, bundle, key=new_key()))

    async def register_app(self, request: wire_apps.AppRequest) -> wire_apps.App:
        """As `Client.register_app`."""
        return await self._call(calls.register_app(request, key=new_key()))

    def apps(self) -> AsyncIterator[wire_apps.App]:
        return self._each(flows.every(self._protocol, calls.list_apps))

    async def get_app(self, app_id: str) -> wire_apps.App:
        return await self._call(calls.get_app(app_id))

    async def submit_job(self, request: wire_jobs.JobRequest, *, idempotency_key: str | None = None) -> wire_jobs.Job:
        """As `Client.submit_job`."""
        return await self._call(calls.submit_job(request, key=idempotency_key or new_key()))

    async def submit_sweep(
        self, request: wire_jobs.SweepRequest, *, idempotency_key: str | None = None
    ) -> wire_jobs.Sweep:
        """As `Client.submit_sweep`."""
        return await self._call(calls.submit_sweep(request, key=idempotency_key or new_key()))

    async def get_sweep(self, sweep_id: str) -> wire_jobs.Sweep:
        return await self._call(calls.get_sweep(sweep_id))

    def jobs(
        self,
        *,
        status: str | None = None,
        app: str | None = None,
        label: str | None = None,
        name: str | None = None,
        submitted_after: datetime | None = None,
        submitted_before: datetime | None = None,
    ) -> AsyncIterator[wire_jobs.Job]:
        """As `Client.jobs`."""
        listed = partial(
            calls.list_jobs,
            status=status,
            app=app,
            label=label,
            name=name,
            submitted_after=submitted_after,
            submitted_before=submitted_before,
        )
        return self._each(flows.every(self._protocol, listed))

    async def get_job(self, job_id: str) -> wire_jobs.Job:
        return await self._call(calls.get_job(job_id))

    async def cancel_job(self, job_id: str) -> wire_jobs.Job:
        """As `Client.cancel_job`."""
        return await self._call(calls.cancel_job(job_id, key=new_key()))

    async def pause_job(self, job_id: str) -> wire_jobs.Job:
        """As `Client.pause_job`."""
        return await self._call(calls.pause_job(job_id, key=new_key()))

    async def resume_job(self, job_id: str) -> wire_jobs.Job:
        """As `Client.resume_job`."""
        return await self._call(calls.resume_job(job_id, key=new_key()))

    async def update_job(self, job_id: str, change: wire_controls.JobUpdate) -> wire_jobs.Job:
        """As `Client.update_job`."""
        return await self._call(calls.update_job(job_id, change))

    async def explain_job(self, job_id: str) -> wire_controls.Explanation:
        """As `Client.explain_job`."""
        return await self._call(calls.explain_job(job_id))

    async def wait(self, job_id: str, *, timeout_s: float | None = None, poll_s: float = 2.0) -> wire_jobs.Job:
        """As `Client.wait`."""
        return await self._run(flows.wait(self._protocol, job_id, timeout_s, poll_s, self._clock))

    def events(self, job_id: str, *, after: int = 0, follow: bool = False) -> AsyncIterator[wire_jobs.JobEvent]:
        """As `Client.events`."""
        return self._each(flows.events(self._protocol, job_id, after, follow, self._clock))

    def log_pages(self, job_id: str, *, position: str = "", follow: bool = False) -> AsyncIterator[wire_jobs.LogPage]:
        """As `Client.log_pages`."""
        return self._each(flows.log_pages(self._protocol, job_id, position, follow, self._clock))

    def metrics(self, job_id: str) -> AsyncIterator[wire_jobs.MetricPoint]:
        return self._each(flows.metrics(self._protocol, job_id))

    def checkpoints(self, job_id: str) -> AsyncIterator[wire_jobs.Checkpoint]:
        return self._each(flows.every(self._protocol, lambda cursor: calls.list_checkpoints(job_id, cursor)))

    def checkpoint_files(self, job_id: str, checkpoint_id: str) -> AsyncIterator[wire_jobs.FileLink]:
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.list_checkpoint_files(job_id, checkpoint_id, cursor))
        )

    def artifacts(self, job_id: str) -> AsyncIterator[wire_jobs.FileLink]:
        return self._each(flows.every(self._protocol, lambda cursor: calls.list_artifacts(job_id, cursor)))

    def download(
        self, job_id: str, directory: str | Path, *, checkpoint_id: str | None = None
    ) -> AsyncIterator[Downloaded]:
        """As `Client.download`."""
        return self._each(flows.download(self._protocol, _links_of(job_id, checkpoint_id), Path(directory)))

    async def timeline(self, job_id: str) -> wire_jobs.Timeline:
        return await self._call(calls.get_timeline(job_id))

    def nodes(self, *, include_gone: bool = False) -> AsyncIterator[wire_jobs.Node]:
        """As `Client.nodes`."""
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.list_nodes(cursor, include_gone=include_gone))
        )

    async def health(self, *, ready: bool = False) -> wire_jobs.Health:
        """As `Client.health`."""
        return await self._call(calls.get_health(ready=ready))

    # Steps, with asyncio

    async def _call(self, call: calls.Call[calls.Reply]) -> calls.Reply:
        return await self._run(self._protocol.exchange(call))

    async def _run(self, flow: Flow[Result]) -> Result:
        try:
            step = next(flow)
            while True:
                try:
                    result = await self._perform(step)
                except (httpx.TransportError, OSError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as end:
            finished: Result = end.value
            return finished

    async def _each(self, flow: ItemFlow[Item]) -> AsyncIterator[Item]:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Emit):
                    yield step.item
                    step = flow.send(None)
                    continue
                try:
                    result = await self._perform(step)
                except (httpx.TransportError, OSError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration:
            return
        finally:
            flow.close()

    async def _perform(self, step: Step) -> Answer | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        if isinstance(step, Store):
            return await self._store(step)
        return _answer(await self._http.send(_request(self._http, step)))

    async def _store(self, step: Store) -> Answer:
        async with self._http.stream("GET", step.url, timeout=httpx_timeout(step.timeout_s)) as response:
            if response.status_code != 200:
                await response.aread()
                return _answer(response)
            try:
                await asyncio.to_thread(step.sink.open)
                async for chunk in response.aiter_bytes():
                    await asyncio.to_thread(step.sink.write, chunk)
                await asyncio.to_thread(step.sink.commit)
            finally:
                step.sink.discard()
        return Answer(200, response.headers, b"")


def new_key() -> str:
    """A fresh idempotency key."""
    return uuid.uuid4().hex


def _connection(url: str | None, api_key: str | None) -> Connection:
    if url is None and api_key is None:
        return find_connection()
    if not url or not api_key:
        missing = "api_key" if url else "url"
        raise ConfigurationError(
            f"url and api_key go together: {missing} is missing", hint=f"Client(..., {missing}=...)"
        )
    return Connection(checked_url(url, "url"), api_key, "as given")


def _links_of(job_id: str, checkpoint_id: str | None) -> Callable[[str | None], calls.Call[Page[wire_jobs.FileLink]]]:
    if checkpoint_id is None:
        return lambda cursor: calls.list_artifacts(job_id, cursor)
    return lambda cursor: calls.list_checkpoint_files(job_id, checkpoint_id, cursor)


def _request(http: httpx.Client | httpx.AsyncClient, step: Send) -> httpx.Request:
    return http.build_request(
        step.method, step.url, headers=dict(step.headers), content=step.content, timeout=httpx_timeout(step.timeout_s)
    )


def _answer(response: httpx.Response) -> Answer:
    return Answer(response.status_code, response.headers, response.content)
