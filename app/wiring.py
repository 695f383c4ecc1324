"""The only place where adapters are built and plugged together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI

from app.api.app import create_app
from app.api.parts import Parts
from app.control.service import ControlService
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.ports.clock import Clock
from app.ports.objects import ObjectStore
from app.ports.provider import Provider
from app.services.found_service import found_service
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.system import RandomIds, SystemClock
from providers.local.adapter import LocalProvider

_log = logging.getLogger(__name__)
_STORE_CHECK_S = 10.0


def build_server(settings: Settings) -> FastAPI:
    """The ASGI application for this process's role. Its parts live from start-up to shutdown."""
    clock = SystemClock()
    url = settings.database_url.get_secret_value()
    database = Database(make_engine(url, pool_size=settings.database_pool_size, timeout_s=settings.database_timeout_s))
    parts = Parts(
        database=database,
        listener=Listener(url, timeout_s=settings.database_timeout_s),
        objects=build_objects(settings, clock),
        settings=settings,
        clock=clock,
        ids=RandomIds(clock),
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(database.close)
            stack.push_async_callback(parts.objects.close)
            await _try_objects(parts.objects)
            stack.push_async_callback(_app.state.authenticator.settled)
            await parts.listener.start()
            stack.push_async_callback(parts.listener.close)
            await found_service(database, settings.client_file, settings.public_url, clock=clock, ids=parts.ids)
            if settings.role != "api":
                await _start_control(parts, stack)
            yield

    return create_app(parts, lifespan=lifespan)


def build_objects(settings: Settings, clock: Clock) -> ObjectStore:
    """The object store that `objects_store` names. Raises InvalidInput naming a setting that is malformed."""
    if settings.objects_store == "directory":
        return DirectoryStore(
            settings.objects_dir,
            settings.objects_url,
            settings.objects_signing_key.get_secret_value(),
            max_object_bytes=settings.max_object_bytes,
            clock=clock,
        )
    from app.storage.s3 import S3Store  # botocore takes its time to load: only for those who use it
    from app.storage.s3_place import s3_place

    place = s3_place(
        endpoint=settings.s3_endpoint,
        public_endpoint=settings.s3_public_endpoint,
        region=settings.s3_region,
        bucket=settings.s3_bucket or "",
        prefix=settings.s3_prefix,
        addressing=settings.s3_addressing,
        access_key=settings.s3_access_key.get_secret_value() if settings.s3_access_key else "",
        secret_key=settings.s3_secret_key.get_secret_value() if settings.s3_secret_key else "",
    )
    return S3Store(
        place,
        max_object_bytes=settings.max_object_bytes,
        clock=clock,
        timeout_s=settings.s3_timeout_s,
        attempts=settings.s3_attempts,
        connections=settings.s3_connections,
    )


async def _try_objects(objects: ObjectStore) -> None:
    """Say early what is wrong. Not fatal: rented machines must be looked after, store or no store."""
    try:
        async with asyncio.timeout(_STORE_CHECK_S):
            wrong = await objects.check()
    except TimeoutError:
        wrong = f"no answer within {_STORE_CHECK_S:g} s"
    if wrong:
        _log.error("the object store cannot be used now: %s", wrong)


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
