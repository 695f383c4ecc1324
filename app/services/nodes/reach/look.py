"""Go to API and object store as a rented machine would, from where this process runs."""

from __future__ import annotations

import asyncio

import httpx

from app.core.model.finding import Finding, wrong
from app.errors import AllpassError
from app.ports.clock import Clock
from app.ports.objects import ObjectStore
from app.services.nodes.reach.api import ApiLook
from app.services.nodes.reach.asking import machine
from app.services.nodes.reach.keys import MOST_HOLD_S, ReachKeys
from app.services.nodes.reach.store import StoreLook
from app.settings import Settings

_LONGER_S = 5  # than an agent waits for an answer: proxies cut at round numbers
_WITHIN_S = 120.0


async def look_from_here(settings: Settings, objects: ObjectStore, clock: Clock, *, hold: bool) -> list[Finding]:
    """What API and store are like from here; one that cannot be looked at hides nothing of the other. `hold`: also wait
    as long as an agent does for an answer."""
    async with machine() as http:
        api, store = await asyncio.gather(
            look_at_api(http, settings, clock, hold=hold), look_at_store(http, settings, objects, clock)
        )
    return [*api, *store]


async def look_at_api(http: httpx.AsyncClient, settings: Settings, clock: Clock, *, hold: bool) -> list[Finding]:
    keys = ReachKeys(settings.secret_key.get_secret_value())
    hold_s = min(MOST_HOLD_S, round(settings.agent_poll_s) + _LONGER_S) if hold else 0
    try:
        async with asyncio.timeout(_WITHIN_S):
            return await ApiLook(http, settings.public_url, keys, clock, hold_s=hold_s).findings()
    except TimeoutError:
        fix = "look at the proxy's or tunnel's speed"
        return [wrong("public URL", "check_timed_out", f"not known after {_WITHIN_S:g} s", fix)]


async def look_at_store(
    http: httpx.AsyncClient, settings: Settings, objects: ObjectStore, clock: Clock
) -> list[Finding]:
    setting = "ALLPASS_OBJECTS_URL" if settings.objects_store == "directory" else "ALLPASS_S3_PUBLIC_ENDPOINT"
    try:
        async with asyncio.timeout(_WITHIN_S):
            return await StoreLook(http, objects, clock, setting=setting).findings()
    except TimeoutError:
        return [wrong("store", "check_timed_out", f"not known after {_WITHIN_S:g} s", "look at the line's speed")]
    except AllpassError as error:
        return [wrong("store", error.error_code, error.message, f"correct {setting} and the store's other settings")]
