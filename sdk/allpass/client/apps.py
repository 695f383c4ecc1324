"""The clients' methods about code, apps, machines and the service itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime

from allpass import calls, flows
from allpass.bundle import Bundle
from allpass.client.awaited import Awaited
from allpass.client.blocking import Blocking
from allpass.client.setup import new_key
from allpass.wire import apps as wire_apps
from allpass.wire import jobs as wire_jobs
from allpass.wire import pressure as wire_pressure
from allpass.wire import ticks as wire_ticks


class AppMethods(Blocking):
    """Of `Client`."""

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

    def nodes(self, *, include_gone: bool = False) -> Iterator[wire_jobs.Node]:
        """Machines that are paid for now; with `include_gone` also those that were."""
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.list_nodes(cursor, include_gone=include_gone))
        )

    def pressure(self, *, limit: int = 20) -> wire_pressure.Pressure:
        """What the control loop saw and chose lately, newest first."""
        return self._call(calls.get_pressure(limit))

    def ticks(self, *, job_id: str | None = None, until: datetime | None = None) -> Iterator[wire_pressure.Decision]:
        """Decisions of the control loop, newest first: all that are kept, those with an action on a job, those that
        were taken until then."""
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.list_ticks(cursor, job_id=job_id, until=until))
        )

    def get_tick(self, tick_id: int) -> wire_pressure.Decision:
        return self._call(calls.get_tick(tick_id))

    def replay_tick(self, tick_id: int, request: wire_ticks.ReplayRequest) -> wire_ticks.Replay:
        """Take a decision again on what it saw, and compare. Nothing is enacted."""
        return self._call(calls.replay_tick(tick_id, request, key=new_key()))

    def health(self, *, ready: bool = False) -> wire_jobs.Health:
        """Whether the server lives; with `ready`, whether it can take jobs."""
        return self._call(calls.get_health(ready=ready))


class AsyncAppMethods(Awaited):
    """Of `AsyncClient`: as `AppMethods`, awaited."""

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

    def nodes(self, *, include_gone: bool = False) -> AsyncIterator[wire_jobs.Node]:
        """As `Client.nodes`."""
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.list_nodes(cursor, include_gone=include_gone))
        )

    async def pressure(self, *, limit: int = 20) -> wire_pressure.Pressure:
        """As `Client.pressure`."""
        return await self._call(calls.get_pressure(limit))

    def ticks(
        self, *, job_id: str | None = None, until: datetime | None = None
    ) -> AsyncIterator[wire_pressure.Decision]:
        """As `Client.ticks`."""
        return self._each(
            flows.every(self._protocol, lambda cursor: calls.list_ticks(cursor, job_id=job_id, until=until))
        )

    async def get_tick(self, tick_id: int) -> wire_pressure.Decision:
        """As `Client.get_tick`."""
        return await self._call(calls.get_tick(tick_id))

    async def replay_tick(self, tick_id: int, request: wire_ticks.ReplayRequest) -> wire_ticks.Replay:
        """As `Client.replay_tick`."""
        return await self._call(calls.replay_tick(tick_id, request, key=new_key()))

    async def health(self, *, ready: bool = False) -> wire_jobs.Health:
        """As `Client.health`."""
        return await self._call(calls.get_health(ready=ready))
