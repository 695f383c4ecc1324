"""Our jobs and pods as they are now, followed by watches, so that looking for offers costs the API server nothing.

Decisions about single machines never go by this: they ask. A watch that breaks off, expires or falls silent only makes
the next look a list.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from app.errors import ProviderError, Transient
from app.ports.clock import Clock
from providers.kubernetes.order import OURS
from providers.kubernetes.reading import at
from providers.kubernetes.wire import KubeWire

_TRUSTED_MS = 600_000  # after which a list is compared anew, whatever the watch says
_LEAST_MS = 1_000  # a server that ends each watch at once is not asked again and again
_log = logging.getLogger(__name__)


class FollowedObjects:
    """The objects of one kind. `rows` lists when nothing is followed, and raises what that raises."""

    def __init__(self, wire: KubeWire, clock: Clock, path: str) -> None:
        self._wire = wire
        self._clock = clock
        self._path = path
        self._rows: dict[str, Any] = {}
        self._version = ""
        self._listed_ms = 0
        self._following: asyncio.Task[None] | None = None
        self._is_live = False
        self._looking = asyncio.Lock()

    async def rows(self) -> list[Any]:
        async with self._looking:
            if not (self._is_live and self._clock.now_ms() - self._listed_ms < _TRUSTED_MS):
                await self.close()
                rows, self._version = await self._wire.listed(self._path, OURS)
                self._rows = {_uid(row): row for row in rows}
                self._listed_ms = self._clock.now_ms()
                self._following = asyncio.create_task(self._follow())
            return list(self._rows.values())

    async def close(self) -> None:
        task, self._following, self._is_live = self._following, None, False
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            begun_ms = -_LEAST_MS
            while self._clock.now_ms() - begun_ms >= _LEAST_MS:
                begun_ms = self._clock.now_ms()
                async with self._wire.watched(self._path, OURS, self._version) as events:
                    self._is_live = True
                    async for event in events:
                        self._take_in(event)
        except ProviderError as error:
            _log.info("the next look at %s is a list: %s", self._path, error)
        finally:
            self._is_live = False

    def _take_in(self, event: dict[str, Any]) -> None:
        kind, found = event.get("type"), event.get("object")
        if kind == "ERROR":  # 410: the version that it should go on from is not known any more
            raise Transient(f"the watch ended: {at(found, 'code')} {at(found, 'message')}")
        version = at(found, "metadata", "resourceVersion")
        if isinstance(version, str) and version:
            self._version = version
        if kind == "DELETED":
            self._rows.pop(_uid(found), None)
        elif kind in {"ADDED", "MODIFIED"}:
            self._rows[_uid(found)] = found


def _uid(found: Any) -> str:
    return str(at(found, "metadata", "uid") or id(found))
