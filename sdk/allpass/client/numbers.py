"""The clients' methods about what was used, what could be rented, and what is found in logs and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime

from allpass import calls, flows
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.client.setup import new_key
from allpass.wire import jobs as wire_jobs
from allpass.wire import providers as wire_providers
from allpass.wire import usage as wire


class NumberMethods(Blocking):
    """Of `Client`."""

    def usage(
        self, group_by: str = "job", *, since: datetime | None = None, until: datetime | None = None
    ) -> wire.Usage:
        """Cost and GPU time from the ledger, by "job", "app", "label:KEY", "day", "provider" or "tier".

        `since` counts, `until` does not; both are instants with their zone.
        """
        return self._call(calls.get_usage(group_by, since=since, until=until))

    def offers(
        self,
        *,
        gpu_type: str | None = None,
        tier: str | None = None,
        provider: str | None = None,
        max_price: int | None = None,
    ) -> Iterator[wire.Offer]:
        """What could be rented now, the cheapest per GPU first. `max_price` is micro-dollars per GPU and hour."""
        return self._each(
            flows.every(
                self._protocol,
                lambda cursor: calls.list_offers(
                    cursor, gpu_type=gpu_type, tier=tier, provider=provider, max_price=max_price
                ),
            )
        )

    def providers(self) -> list[wire_providers.Provider]:
        """The rental companies that the service has credentials for, and how each is doing."""
        return self._call(calls.list_providers()).providers

    def check_providers(self) -> list[wire_providers.ProviderCheck]:
        """Whether each takes the service's credentials; rents nothing. Needs a key with scope `admin`."""
        return self._call(calls.check_providers(key=new_key())).checks

    def search_log(self, job_id: str, text: str, *, ignore_case: bool = False) -> Iterator[wire_jobs.LogMatch]:
        """Lines of the job's log that hold the text, as it is; goes on through the log as the iterator is advanced."""
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.search_log(job_id, text, cursor, ignore_case=ignore_case))
        )

    def metric_curves(
        self, job_id: str, *, max_points: int = 500, names: Sequence[str] | None = None
    ) -> list[wire_jobs.MetricPoint]:
        """The history of each metric in at most so many points (4 or more), chosen so that no spike disappears."""
        return self._call(calls.get_metric_curves(job_id, max_points=max_points, names=names)).data


class AsyncNumberMethods(Awaited):
    """Of `AsyncClient`: as `NumberMethods`, awaited."""

    async def usage(
        self, group_by: str = "job", *, since: datetime | None = None, until: datetime | None = None
    ) -> wire.Usage:
        """As `Client.usage`."""
        return await self._call(calls.get_usage(group_by, since=since, until=until))

    def offers(
        self,
        *,
        gpu_type: str | None = None,
        tier: str | None = None,
        provider: str | None = None,
        max_price: int | None = None,
    ) -> AsyncIterator[wire.Offer]:
        """As `Client.offers`."""
        return self._each(
            flows.every(
                self._protocol,
                lambda cursor: calls.list_offers(
                    cursor, gpu_type=gpu_type, tier=tier, provider=provider, max_price=max_price
                ),
            )
        )

    async def providers(self) -> list[wire_providers.Provider]:
        """As `Client.providers`."""
        return (await self._call(calls.list_providers())).providers

    async def check_providers(self) -> list[wire_providers.ProviderCheck]:
        """As `Client.check_providers`."""
        return (await self._call(calls.check_providers(key=new_key()))).checks

    def search_log(self, job_id: str, text: str, *, ignore_case: bool = False) -> AsyncIterator[wire_jobs.LogMatch]:
        """As `Client.search_log`."""
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.search_log(job_id, text, cursor, ignore_case=ignore_case))
        )

    async def metric_curves(
        self, job_id: str, *, max_points: int = 500, names: Sequence[str] | None = None
    ) -> list[wire_jobs.MetricPoint]:
        """As `Client.metric_curves`."""
        return (await self._call(calls.get_metric_curves(job_id, max_points=max_points, names=names))).data
