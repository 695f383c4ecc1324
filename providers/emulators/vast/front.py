"""The emulated company's side of the wire, and what it does on its own account between calls."""

from __future__ import annotations

import asyncio
import logging
import socket

from starlette.applications import Starlette

from providers.emulators.vast.contracts import Contracts
from providers.emulators.wire import HttpFront

_EVERY_S = 0.1
_log = logging.getLogger(__name__)


class VastFront(HttpFront):
    """An HTTP server beside which bids are won and lost, and accounts run dry."""

    def __init__(self, app: Starlette, contracts: Contracts) -> None:
        super().__init__(app)
        self._contracts = contracts
        self._working: asyncio.Task[None] | None = None

    async def open(self, listener: socket.socket) -> None:
        await super().open(listener)
        self._working = asyncio.create_task(self._work())

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])
        await super().close()

    async def _work(self) -> None:
        while True:
            try:
                await self._contracts.settle()
            except Exception:
                _log.exception("the market could not be settled")
            await asyncio.sleep(_EVERY_S)
