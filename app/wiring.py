"""The only place where adapters are built and plugged together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI

from app.api.app import create_app
from app.api.context import ApiContext
from app.control.service import ControlService
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.db.nodes.host_failures import DatabaseHostFailures
from app.db.offers.call_paces import DatabasePace
from app.db.offers.price_lists import DatabaseOwnPrices
from app.errors import InvalidInput, Unavailable
from app.plugins import FoundProvider
from app.ports.clock import Clock
from app.ports.failures import HostFailures, ProcessHostFailures
from app.ports.hosts import OwnHosts
from app.ports.objects import ObjectStore
from app.ports.pace import Pace, ProcessPace
from app.ports.plugin import ProviderTools
from app.ports.prices import OwnPrices, ProcessOwnPrices
from app.ports.provider import Provider
from app.ports.unusable import UnusableProvider
from app.services.access.bootstrap import bootstrap, make_owner_key
from app.services.kit.seal import Sealer
from app.services.pools.own_hosts import DatabaseHosts
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.system import RandomIds, SystemClock

if TYPE_CHECKING:
    from app.storage.s3 import S3Store

_log = logging.getLogger(__name__)
_STORE_CHECK_S = 10.0


def build_server(settings: Settings) -> FastAPI:
    """The ASGI application for this process's role. Its parts live from start-up to shutdown."""
    clock = SystemClock()
    url = settings.database_url.get_secret_value()
    database = Database(make_engine(url, pool_size=settings.database_pool_size, timeout_s=settings.database_timeout_s))
    context = ApiContext(
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
            stack.push_async_callback(context.objects.close)
            await _try_objects(context.objects)
            stack.push_async_callback(_app.state.authenticator.settled)
            await context.listener.start()
            stack.push_async_callback(context.listener.close)
            await bootstrap(database, settings.client_file, settings.public_url, clock=clock, ids=context.ids)
            if settings.role != "api":
                await _start_control(context, stack)
            yield

    return create_app(context, lifespan=lifespan)


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


async def new_owner_key(settings: Settings) -> dict[str, str]:
    """Address and key of an owner, as `ALLPASS_CLIENT_FILE` and `allpass login` have them."""
    clock, url = SystemClock(), settings.database_url.get_secret_value()
    database = Database(make_engine(url, pool_size=1, timeout_s=settings.database_timeout_s))
    try:
        key = await make_owner_key(database, clock=clock, ids=RandomIds(clock))
    finally:
        await database.close()
    return {"url": settings.public_url, "api_key": key}


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


async def _start_control(context: ApiContext, stack: AsyncExitStack) -> None:
    providers = build_providers(context.settings, context.clock, context.database)
    for provider in providers.values():
        stack.push_async_callback(provider.close)
    control = ControlService(
        database=context.database,
        listener=context.listener,
        providers=providers,
        settings=context.settings,
        clock=context.clock,
        ids=context.ids,
        objects=context.objects,
    )
    await control.start()
    stack.push_async_callback(control.stop)


def build_providers(settings: Settings, clock: Clock, database: Database | None) -> dict[str, Provider]:
    """Every installed provider that has credentials. One without them is absent, not broken; one of a package from
    outside that cannot be used is there, and refuses every call. What a company limits for the whole account goes
    through `build_pace`, what is remembered of hosts through `build_host_failures`, and an owner's prices through
    `build_own_prices`; a tool that runs alone needs no database for any of them."""
    providers: dict[str, Provider] = {}
    for found in settings.providers:
        if not found.owns_name:
            _tell_left_out(found, found.problem)
        elif found.is_configured or found.problem:
            providers[found.name] = _build(found, settings, clock, database)
    return providers


def _build(found: FoundProvider, settings: Settings, clock: Clock, database: Database | None) -> Provider:
    """One of a package from outside that cannot be built is told, and stands there as unusable."""
    if found.problem or found.plugin is None:
        return _unusable(found, found.problem)
    tools = ProviderTools(
        clock=clock,
        pace=build_pace(found.name, settings, clock, database),
        host_failures=build_host_failures(found.name, database),
        operation_timeout_s=settings.operation_timeout_s,
        logins=settings.logins,
        own_prices=build_own_prices(found.name, database),
        hosts=build_hosts(settings, clock, database),
    )
    try:
        built: Provider = found.plugin.build(found.section, tools)
        _check_built(found, built)
    except Exception as error:
        if found.is_own:
            raise
        return _unusable(found, f"it cannot be built: {type(error).__name__}: {error}")
    return built


def _check_built(found: FoundProvider, built: Provider) -> None:
    """Rows, offers and bills are filed by the name: one that uses another's would be charged to that one."""
    names = {built.name, *(traits.provider for traits in built.traits())}
    if names != {found.name}:
        raise InvalidInput(f"it calls itself {', '.join(sorted(names - {found.name}))}, and not {found.name}")


def _tell_left_out(found: FoundProvider, problem: str) -> None:
    _log.error("provider %s of package %s is left out: %s", found.name, found.package, problem)


def _unusable(found: FoundProvider, problem: str) -> Provider:
    _tell_left_out(found, problem)
    return UnusableProvider(found.name, f"{problem} (package {found.package})")


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


def build_own_prices(provider: str, database: Database | None) -> OwnPrices:
    """What an owner set in place of a list's prices, as all processes know it; without a database, nothing."""
    return ProcessOwnPrices() if database is None else DatabaseOwnPrices(database, provider)


def build_hosts(settings: Settings, clock: Clock, database: Database | None) -> OwnHosts | None:
    """Hosts that have joined pools; without a database, none are known."""
    return None if database is None else DatabaseHosts(database, Sealer.of(settings), clock, RandomIds(SystemClock()))
