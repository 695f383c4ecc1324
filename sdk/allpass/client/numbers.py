"""The clients' methods about what was used, what could be rented, and what is found in logs and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import date, datetime

from pydantic import ValidationError

from allpass import calls, flows
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.client.setup import new_key
from allpass.errors import InvalidInput
from allpass.wire import jobs as wire_jobs
from allpass.wire import providers as wire_providers
from allpass.wire import usage as wire
from allpass.wire.price_lists import OwnPricesRequest, PriceList


class NumberMethods(Blocking):
    """Of `Client`."""

    def usage(
        self,
        group_by: str = "job",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        job_id: str | None = None,
    ) -> wire.Usage:
        """Cost and GPU time from the ledger, by "job", "app", "label:NAME", "key", "day", "provider", "tier" or
        "size" (how many GPUs runs held).

        `since` counts, `until` does not; both are instants with their zone. `job_id`: of this job alone.
        """
        return self._call(calls.get_usage(group_by, since=since, until=until, job_id=job_id))

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

    def image_builds(self, image: str | None = None) -> list[wire_providers.ImageBuild]:
        """How far images are at providers that build them first: all of them, or this one. Needs a key with scope
        `admin`."""
        return self._call(calls.list_image_builds(image)).images

    def prepare_image(self, image: str, *, provider: str | None = None) -> list[wire_providers.ImageBuild]:
        """Have an image built ahead, where providers do that. Returns at once; `image_builds` tells how far it is. One
        that failed is tried again. Needs a key with scope `admin`."""
        return self._call(calls.prepare_image(_image_request(image, provider), key=new_key())).images

    def check_service(self) -> wire_providers.ProviderChecks:
        """As `check_providers`, and whether API and object store are reached through their public addresses. Takes
        half a minute or more. Needs a key with scope `admin`."""
        return self._call(calls.check_providers(key=new_key(), reach=True))

    def price_list(self, provider: str) -> PriceList:
        """The prices of a company that has no interface for them, and those that owners set in their place."""
        return self._call(calls.get_price_list(provider))

    def set_prices(
        self, provider: str, prices: Mapping[str, float], *, as_of: date | str | None = None, confirm: bool = False
    ) -> PriceList:
        """Dollars per hour, by the names of the list, from the next listing on; the others stay. `confirm`: also what
        is more than three times the price in use, or less than a third of it. Needs a key with scope `owner`."""
        return self._call(calls.set_prices(provider, _own_prices(prices, as_of, confirm=confirm)))

    def remove_prices(self, provider: str, names: Sequence[str] | None = None) -> PriceList:
        """Take back what owners set, or those of these names. Needs a key with scope `owner`."""
        return self._call(calls.remove_prices(provider, names))

    def refresh_prices(self) -> list[wire_providers.PriceRefresh]:
        """Have every provider list what it would rent now; rents nothing. Needs a key with scope `admin`."""
        return self._call(calls.refresh_prices(key=new_key())).refreshes

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
        self,
        group_by: str = "job",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        job_id: str | None = None,
    ) -> wire.Usage:
        """As `Client.usage`."""
        return await self._call(calls.get_usage(group_by, since=since, until=until, job_id=job_id))

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

    async def image_builds(self, image: str | None = None) -> list[wire_providers.ImageBuild]:
        """As `Client.image_builds`."""
        return (await self._call(calls.list_image_builds(image))).images

    async def prepare_image(self, image: str, *, provider: str | None = None) -> list[wire_providers.ImageBuild]:
        """As `Client.prepare_image`."""
        return (await self._call(calls.prepare_image(_image_request(image, provider), key=new_key()))).images

    async def check_service(self) -> wire_providers.ProviderChecks:
        """As `Client.check_service`."""
        return await self._call(calls.check_providers(key=new_key(), reach=True))

    async def price_list(self, provider: str) -> PriceList:
        """As `Client.price_list`."""
        return await self._call(calls.get_price_list(provider))

    async def set_prices(
        self, provider: str, prices: Mapping[str, float], *, as_of: date | str | None = None, confirm: bool = False
    ) -> PriceList:
        """As `Client.set_prices`."""
        return await self._call(calls.set_prices(provider, _own_prices(prices, as_of, confirm=confirm)))

    async def remove_prices(self, provider: str, names: Sequence[str] | None = None) -> PriceList:
        """As `Client.remove_prices`."""
        return await self._call(calls.remove_prices(provider, names))

    async def refresh_prices(self) -> list[wire_providers.PriceRefresh]:
        """As `Client.refresh_prices`."""
        return (await self._call(calls.refresh_prices(key=new_key()))).refreshes

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


def _image_request(image: str, provider: str | None) -> wire_providers.ImageRequest:
    try:
        return wire_providers.ImageRequest.model_validate({"image": image, "provider": provider})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        told = f"{first['loc'][0]}: {first['input']!r:.200} is refused: {first['msg']}"
        raise InvalidInput(told, hint='prepare_image("docker.io/lab/train:7")') from None


def _own_prices(prices: Mapping[str, float], as_of: date | str | None, *, confirm: bool) -> OwnPricesRequest:
    day = as_of.isoformat() if isinstance(as_of, date) else as_of
    try:
        return OwnPricesRequest.model_validate({"prices": prices, "as_of": day, "confirm": confirm})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInput(
            f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}", hint='set_prices("modal", {"H100": 3.95})'
        ) from None
