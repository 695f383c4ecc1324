"""Hearing the wake-ups of `app.db.notify`: one connection that listens, and events that anyone may wait on.

A lost connection is made again, and everybody is woken then: something may have been missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator

import asyncpg

from app.db.notify import CHECKS, CONTROL, HOST, JOB, NODE, OPERATIONS, named_in

_CHANNELS = (CONTROL, OPERATIONS, NODE, JOB, CHECKS, HOST)
_RETRY_S = 1.0
_CHECK_S = 10.0

log = logging.getLogger(__name__)


class Listener:
    """Start once per process; `watch` hands out events that are set by matching notifications."""

    def __init__(self, database_url: str, *, timeout_s: float) -> None:
        self._url = database_url
        self._timeout_s = timeout_s
        self._watchers: defaultdict[tuple[str, str | None], set[asyncio.Event]] = defaultdict(set)
        self._by_channel: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Begin to listen; returns once the first connection is up, or after the timeout without one."""
        self._task = asyncio.create_task(self._keep_listening(), name="listen")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._ready.wait()

    async def close(self) -> None:
        """Stop; stopping twice is harmless."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    @contextlib.contextmanager
    def watch(self, channel: str, payload: str | None = None) -> Iterator[asyncio.Event]:
        """An event that is set whenever `channel` is notified (with `payload`; None: with any).

        Check the state after entering, then wait: nothing that commits in between is missed.
        """
        event = asyncio.Event()
        watchers = self._watchers[channel, payload]
        self._by_channel[channel] += not watchers
        watchers.add(event)
        try:
            yield event
        finally:
            watchers.discard(event)
            if not watchers and self._watchers.pop((channel, payload), None) is not None:
                self._by_channel[channel] -= 1

    def watched(self, channel: str) -> int:
        """How many payloads of this channel somebody waits for now."""
        return self._by_channel[channel]

    async def _keep_listening(self) -> None:
        while True:
            try:
                await self._listen()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.warning("listening for wake-ups failed, polling meanwhile: %s", error)
            await asyncio.sleep(_RETRY_S)

    async def _listen(self) -> None:
        connection = await asyncpg.connect(self._url, timeout=self._timeout_s, command_timeout=self._timeout_s)
        try:
            for channel in _CHANNELS:
                await connection.add_listener(channel, self._heard)
            self._ready.set()
            self._wake_all()
            while not connection.is_closed():
                await asyncio.sleep(_CHECK_S)
                await connection.fetchval("SELECT 1")
        finally:
            connection.terminate()

    def _heard(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        for name in (*named_in(str(payload)), None):
            for event in self._watchers.get((channel, name), ()):
                event.set()

    def _wake_all(self) -> None:
        for watchers in self._watchers.values():
            for event in watchers:
                event.set()
