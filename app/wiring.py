"""The only place where adapters are built and plugged together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI

from app.api.app import create_app
from app.api.parts import Parts
from app.control.service import ControlService
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.ports.clock import Clock
from app.ports.provider import Provider
from app.services.found_service import found_service
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.system import RandomIds, SystemClock
from providers.local.adapter import LocalProvider


def build_server(settings: Settings) -> FastAPI:
    """The ASGI application for this process's role. Its parts live from start-up to shutdown."""
    clock = SystemClock()
    url = settings.database_url.get_secret_value()
    database = Database(make_engine(url, pool_size=settings.database_pool_size, timeout_s=settings.database_timeout_s))
    parts = Parts(
        database=database,
        listener=Listener(url, timeout_s=settings.database_timeout_s),
        objects=DirectoryStore(
            settings.objects_dir,
            settings.objects_url,
            settings.objects_signing_key.get_secret_value(),
            max_object_bytes=settings.max_object_bytes,
            clock=clock,
        ),
        settings=settings,
        clock=clock,
        ids=RandomIds(clock),
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(database.close)
            stack.push_async_callback(parts.objects.close)
            await parts.listener.start()
            stack.push_async_callback(parts.listener.close)
            await found_service(database, settings.client_file, settings.public_url, clock=clock, ids=parts.ids)
            if settings.role != "api":
                await _start_control(parts, stack)
            yield

    return create_app(parts, lifespan=lifespan)


async def _start_control(parts: Parts, stack: AsyncExitStack) -> None:
    providers = build_providers(parts.settings, parts.clock)
    for provider in providers.values():
        stack.push_async_callback(provider.close)
    control = ControlService(
        database=parts.database,
        listener=parts.listener,
        providers=providers,
        settings=parts.settings,
        clock=parts.clock,
        ids=parts.ids,
    )
    await control.start()
    stack.push_async_callback(control.stop)


def build_providers(settings: Settings, clock: Clock) -> dict[str, Provider]:
    """Every provider that has credentials. One without them is absent, not broken."""
    providers: dict[str, Provider] = {}
    if settings.local_cloud_url and settings.local_cloud_key:
        key = settings.local_cloud_key.get_secret_value()
        providers["local"] = LocalProvider(
            settings.local_cloud_url, key, timeout_s=settings.operation_timeout_s, clock=clock
        )
    return providers
