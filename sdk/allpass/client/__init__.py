"""The clients: `Client` for plain code, `AsyncClient` for asyncio. Same calls, same models, same errors.

    with Client() as client:
        for job in client.jobs(status="running"):
            print(job.id, job.step)

Both read where the server is from the environment or the configuration (see `allpass.config`) unless told. Tests of
your own code can pass `transport=httpx.MockTransport(handler)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allpass.client.access import AccessMethods, AsyncAccessMethods
from allpass.client.apps import AppMethods, AsyncAppMethods
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.client.defragmentations import AsyncDefragMethods, DefragMethods
from allpass.client.jobs import AsyncJobMethods, JobMethods
from allpass.client.lending import AsyncLendingMethods, LendingMethods
from allpass.client.model_names import AsyncModelNameMethods, ModelNameMethods
from allpass.client.numbers import AsyncNumberMethods, NumberMethods
from allpass.client.pools import AsyncPoolMethods, PoolMethods
from allpass.client.records import AsyncRecordMethods, RecordMethods
from allpass.client.setup import DEFAULT_TIMEOUT_S, new_key

if TYPE_CHECKING:
    from allpass.job import Job
    from allpass.sweep import Sweep

__all__ = ["DEFAULT_TIMEOUT_S", "AsyncClient", "Client", "new_key"]


class Client(
    AppMethods,
    JobMethods,
    RecordMethods,
    NumberMethods,
    AccessMethods,
    ModelNameMethods,
    PoolMethods,
    DefragMethods,
    LendingMethods,
    Blocking,
):
    """Speaks to one Allpass server, with blocking I/O. Threads may share it. Close it, or use it as a context.

    `url` and `api_key` go together; without them the configuration is searched. `timeout_s` bounds every wait for the
    network. `sleep` and `clock` (seconds, monotonic) are what waits are made of.
    """

    def job(self, job_id: str) -> Job:
        """A handle for a job, without asking whether it exists."""
        from allpass.job import Job  # job.py needs this module

        return Job(job_id, self)

    def sweep(self, sweep_id: str) -> Sweep:
        """A handle for a sweep that was submitted earlier; NotFound if there is none."""
        from allpass.job import Job
        from allpass.sweep import Sweep

        return Sweep(sweep_id, [Job(one.id, self) for one in self.get_sweep(sweep_id).jobs], self)


class AsyncClient(
    AsyncAppMethods,
    AsyncJobMethods,
    AsyncRecordMethods,
    AsyncNumberMethods,
    AsyncAccessMethods,
    AsyncModelNameMethods,
    AsyncPoolMethods,
    AsyncDefragMethods,
    AsyncLendingMethods,
    Awaited,
):
    """`Client` for asyncio: the same methods, awaited; lists are asynchronous iterators."""
