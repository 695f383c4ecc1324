"""Builds of images, by the leader: one for each provider and image at a time, whatever becomes of this process.

What is to be built is in the database. A build goes on for as long as we ask for it: nobody promises that it would
without us. A process that takes over the lead asks again, and joins the build where it is still going on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from app.control.context import ControlContext
from app.control.each import each, each_by_itself
from app.core.image_builds import last_lines, next_try_ms, told_why
from app.core.model.health import Chore
from app.core.model.image import WantedImage
from app.core.policies.reasons import duration
from app.db.connection import Connection
from app.db.offers.image_builds import (
    BuildFailure,
    ImageBuild,
    add_events_of_jobs_with,
    begin,
    fail,
    set_builders,
    succeed,
    to_build,
    want_image,
)
from app.db.offers.provider_states import closed_providers
from app.db.transitions import Event
from app.errors import AllpassError, Fenced, ImageRefused, ProviderError, Transient
from app.ports.provider import ImageBuilder

log = logging.getLogger(__name__)

AT_ONCE = 4  # at one provider; others wait their turn


@dataclass(frozen=True, slots=True)
class _Key:
    provider: str
    image: str

    def __str__(self) -> str:
        return f"image {self.image} at {self.provider}"


class ImageBuilds:
    """One per control process. `look` is the leader's chore: it begins what is due and returns at once."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._tasks: dict[_Key, asyncio.Task[None]] = {}

    async def look(self) -> None:
        """Begin what is to be built and nobody builds."""
        context = self._context
        names = sorted({trait.provider for trait in context.traits() if trait.builds_images})
        now_ms = context.clock.now_ms()
        async with context.led() as connection:
            await set_builders(connection, names)
            closed = {one.provider for one in await closed_providers(connection, now_ms=now_ms)}
            if context.settings.prepare_images:
                for name in names:
                    await want_image(connection, name, context.settings.node_image, now_ms=now_ms)
            due = await to_build(connection, [name for name in names if name not in closed], now_ms=now_ms)
        await each_by_itself(context, Chore.IMAGES, due, self._begin, named=lambda one: one.image)

    async def settle(self) -> None:
        """Wait until the builds that go on are over."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def stop(self) -> None:
        """Leave them to whoever leads next."""
        for task in self._tasks.values():
            task.cancel()
        await self.settle()

    async def _begin(self, build: ImageBuild) -> None:
        key = _Key(build.provider, build.image)
        busy = sum(1 for other in self._tasks if other.provider == key.provider)
        if key in self._tasks or busy >= AT_ONCE:
            return
        async with self._context.led() as connection:
            now_ms = self._context.clock.now_ms()
            expected_ms = await begin(connection, build.provider, build.image, now_ms=now_ms)
            told = f"{build.provider} builds the image {build.image}: about {duration(expected_ms)}"
            await self._tell(connection, key, "image_building", told, now_ms)
        task = asyncio.create_task(self._guarded(key, build.failures), name=f"build {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda _task: self._tasks.pop(key, None))

    async def _guarded(self, key: _Key, failures: int) -> None:
        """The outermost frame of one build. What could not be written stays 'being built', and is asked for again."""
        try:
            await self._build(key, failures)
        except AllpassError as error:
            log.warning("%s: asked for again, by whoever leads then: %s", key, error)
        except Exception as error:
            self._context.health.failed(Chore.IMAGES, str(key), error)

    async def _build(self, key: _Key, failures: int) -> None:
        context, timeout_s = self._context, self._context.settings.image_build_timeout_s
        builder: ImageBuilder = context.providers[key.provider]  # type: ignore[assignment]  # its traits say so
        try:
            async with asyncio.timeout(timeout_s):
                await self._while_leading(builder.build_image(key.image))
        except TimeoutError:
            await self._failed(key, Transient(f"it took longer than {timeout_s:g} s"), failures + 1)
        except ProviderError as error:
            await self._failed(key, error, failures + 1)
        else:
            await self._succeeded(key)
        await context.watch.keep()

    async def _while_leading(self, call: Coroutine[Any, Any, None]) -> None:
        """A process that has lost the lead leaves its builds to the one that has it. Raises Fenced."""
        context, task = self._context, asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({task}, timeout=context.settings.leader_lease_s))[0]:
                if not context.leader.leads:
                    raise Fenced("another process leads now")
            task.result()
        finally:
            task.cancel()

    async def _succeeded(self, key: _Key) -> None:
        async with self._context.led() as connection:
            now_ms = self._context.clock.now_ms()
            await succeed(connection, key.provider, key.image, now_ms=now_ms)
            await self._tell(connection, key, "image_built", f"{key.provider} has built the image {key.image}", now_ms)
        log.info("%s is built", key)

    async def _failed(self, key: _Key, error: ProviderError, failures: int) -> None:
        context = self._context
        refused = isinstance(error, ImageRefused)
        lines = last_lines(context.watch.said_in_full(error.log)) if isinstance(error, ImageRefused) else ""
        said = context.watch.said(error)
        why = told_why(said, lines) if refused else said
        now_ms = context.clock.now_ms()
        again_ms = next_try_ms(failures, now_ms, cut_off=not refused)
        failure = BuildFailure(error.error_code, why, lines, failures, again_ms)
        async with context.led() as connection:
            await fail(connection, key.provider, key.image, failure, now_ms=now_ms)
            told = f"{key.provider} could not build the image {key.image}: {why}"
            await self._tell(connection, key, "image_failed", told, now_ms, code=error.error_code, log=lines)
        log.warning("%s could not be built: %s", key, why)

    async def _tell(
        self, connection: Connection, key: _Key, kind: str, message: str, now_ms: int, **facts: str
    ) -> None:
        event = Event(kind, message, {"provider": key.provider, "image": key.image, **facts})
        await add_events_of_jobs_with(connection, key.image, self._context.settings.node_image, event, now_ms=now_ms)


async def want_images(context: ControlContext, wanted: Sequence[WantedImage]) -> None:
    """What a decision found missing."""
    if not wanted:
        return

    async def want(connection: Connection, one: WantedImage) -> None:
        image = one.image or context.settings.node_image
        await want_image(connection, one.provider, image, now_ms=context.clock.now_ms())

    await each(context, Chore.IMAGES, wanted, want, named=lambda one: one.image)
