"""The only place where adapters are built and plugged together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI

from app.api.app import create_app
from app.api.parts import Parts
from app.control.service import ControlService
from app.db.engine import Database, make_engine
from app.db.host_failures import DatabaseHostFailures
from app.db.listen import Listener
from app.db.paces import DatabasePace
from app.errors import InvalidInput, Unavailable
from app.ports.clock import Clock
from app.ports.failures import HostFailures, ProcessHostFailures
from app.ports.objects import ObjectStore
from app.ports.pace import Pace, ProcessPace
from app.ports.provider import Provider
from app.services.found_service import found_service
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.system import RandomIds, SystemClock
from providers.lambda_cloud.adapter import LambdaProvider
from providers.lambda_cloud.options import LambdaOptions
from providers.local.adapter import LocalProvider
from providers.vast.adapter import VastProvider
from providers.vast.options import VastOptions

if TYPE_CHECKING:
    from app.storage.s3 import S3Store

_log = logging.getLogger(__name__)
_STORE_CHECK_S = 10.0
_ADAPTER_SHARE = 0.9


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
    return _build_s3(settings, clock)


def _build_s3(settings: Settings, clock: Clock) -> S3Store:
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


async def make_bucket(settings: Settings) -> None:
    """Make the bucket that the settings name, if it is not there. Raises InvalidInput without S3, Unavailable when it
    cannot be made now."""
    if settings.objects_store != "s3":
        raise InvalidInput("only S3 has buckets; set it to s3", param="ALLPASS_OBJECTS_STORE")
    store = _build_s3(settings, SystemClock())
    try:
        wrong = await store.make_bucket()
    finally:
        await store.close()
    if wrong:
        raise Unavailable(f"the bucket cannot be used: {wrong}")


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
    providers = build_providers(parts.settings, parts.clock, parts.database)
    for provider in providers.values():
        stack.push_async_callback(provider.close)
    control = ControlService(
        database=parts.database,
        listener=parts.listener,
        providers=providers,
        settings=parts.settings,
        clock=parts.clock,
        ids=parts.ids,
        objects=parts.objects,
    )
    await control.start()
    stack.push_async_callback(control.stop)


def build_providers(settings: Settings, clock: Clock, database: Database | None) -> dict[str, Provider]:
    """Every provider that has credentials. One without them is absent, not broken. What a company limits for the
    whole account goes through `build_pace`, and what is remembered of hosts through `build_host_failures`; a tool that
    runs alone needs no database for either."""
    providers: dict[str, Provider] = {}
    if settings.local_cloud_url and settings.local_cloud_key:
        key = settings.local_cloud_key.get_secret_value()
        providers["local"] = LocalProvider(
            settings.local_cloud_url, key, timeout_s=settings.operation_timeout_s, clock=clock
        )
    if settings.modal_token_id and settings.modal_token_secret:
        providers["modal"] = _modal(settings, clock)
    if settings.vast_api_key:
        pace = build_pace("vast", settings, clock, database)
        failures = build_host_failures("vast", database)
        providers["vast"] = VastProvider(_vast_options(settings), clock=clock, pace=pace, failures=failures)
    if settings.lambda_api_key:
        pace = build_pace("lambda", settings, clock, database)
        providers["lambda"] = LambdaProvider(_lambda_options(settings), clock=clock, pace=pace)
    return providers


def _vast_options(settings: Settings) -> VastOptions:
    assert settings.vast_api_key is not None
    return VastOptions(
        api_key=settings.vast_api_key.get_secret_value(),
        base_url=settings.vast_url,
        gpu_types=tuple(settings.vast_gpu_types),
        reliability=settings.vast_reliability,
        inet_down_mbps=settings.vast_inet_down_mbps,
        cuda=settings.vast_cuda,
        verified=settings.vast_verified,
        lease_h=settings.vast_lease_h,
        disk_gb=settings.vast_disk_gb,
        interruptible=settings.vast_interruptible,
        bid_percent=settings.vast_bid_percent,
        search_limit=settings.vast_search_limit,
        startup_ms=round(settings.vast_startup_s * 1000),
        startup_deadline_ms=round(settings.vast_startup_deadline_s * 1000),
        create_grace_ms=round(settings.vast_create_grace_s * 1000),
        timeout_s=settings.operation_timeout_s / 3,  # a create waits for its turn, creates, and looks
    )


def _lambda_options(settings: Settings) -> LambdaOptions:
    assert settings.lambda_api_key is not None
    return LambdaOptions(
        api_key=settings.lambda_api_key.get_secret_value(),
        ssh_key=settings.lambda_ssh_key,
        base_url=settings.lambda_url,
        regions=tuple(settings.lambda_regions or ()),
        startup_ms=round(settings.lambda_startup_s * 1000),
        startup_deadline_ms=round(settings.lambda_startup_deadline_s * 1000),
        create_grace_ms=round(settings.lambda_create_grace_s * 1000),
        call_every_ms=round(settings.lambda_call_every_s * 1000),
        launch_every_ms=round(settings.lambda_launch_every_s * 1000),
        timeout_s=settings.operation_timeout_s / 4,  # a create looks at the offer, waits for its turn, and launches
    )


def _modal(settings: Settings, clock: Clock) -> Provider:
    """Raises InvalidInput naming a setting that is malformed."""
    # Modal's client takes its time to load: only for those who use it.
    from providers.modal.adapter import ModalProvider, Times
    from providers.modal.catalogue import Catalogue, Shape
    from providers.modal.link import Account
    from providers.modal.sdk import MODAL_SERVER_URL

    assert settings.modal_token_id is not None
    assert settings.modal_token_secret is not None
    try:
        shape = Shape(settings.modal_cpus, settings.modal_memory_gib)
        startup_ms = round(settings.modal_startup_s * 1000)
        catalogue = Catalogue(
            shape, gpus=settings.modal_gpus, usd_per_hour=settings.modal_prices, startup_ms=startup_ms
        )
    except ValueError as error:
        raise InvalidInput(f"ALLPASS_MODAL_GPUS or ALLPASS_MODAL_PRICES: {error}", param="modal_prices") from error
    account = Account(
        token_id=settings.modal_token_id.get_secret_value(),
        token_secret=settings.modal_token_secret.get_secret_value(),
        server_url=settings.modal_server_url or MODAL_SERVER_URL,
        app=settings.modal_app,
        environment=settings.modal_environment,
    )
    # Within what an operation has, so that the adapter's own word comes before the caller's "no answer".
    timeout_s = _ADAPTER_SHARE * settings.operation_timeout_s
    times = Times(
        startup_ms=startup_ms,
        startup_deadline_ms=round(settings.modal_startup_deadline_s * 1000),
        create_grace_ms=round(settings.modal_create_grace_s * 1000),
    )
    return ModalProvider(account, catalogue, clock=clock, timeout_s=timeout_s, times=times)


def build_pace(provider: str, settings: Settings, clock: Clock, database: Database | None) -> Pace:
    """The turns of one provider's account, shared by all processes. A caller waits for a third of the time that an
    operation has at most: the call itself has the rest."""
    patience_ms = round(settings.operation_timeout_s * 1000) // 3
    if database is None:
        return ProcessPace(clock, patience_ms=patience_ms)
    return DatabasePace(database, provider, clock=clock, patience_ms=patience_ms)


def build_host_failures(provider: str, database: Database | None) -> HostFailures:
    """The hosts of one provider that failed, remembered by all processes; without a database, by this one."""
    return ProcessHostFailures() if database is None else DatabaseHostFailures(database, provider)
