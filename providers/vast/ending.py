"""Contracts that this process is to destroy without ever having seen them: another one has rented them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import Any

from app.errors import ProviderError
from providers.vast.wire import VastWire

_MOST_REMEMBERED = 4096
_log = logging.getLogger(__name__)


class _Found(Enum):
    NO_ANSWER = "no answer"
    NOTHING = "nothing"
    GONE = "gone"  # nothing, and the call that destroys has found nothing either


class LastLooks:
    """One look at each, however often its end is tried: what is destroyed unseen cannot be told from what never was,
    nor its bill be asked for.

    Looks have a lane of their own, one in two seconds. An operation may not be given the time for two of them: so a
    contract of which both calls say that it is not there needs no second look, and what the first one found is kept
    for the next attempt.
    """

    def __init__(self, wire: VastWire, *, timeout_s: float) -> None:
        self._wire = wire
        self._timeout_s = timeout_s
        self._found: OrderedDict[str, _Found] = OrderedDict()

    async def take(self, ref: str) -> Mapping[str, Any] | None:
        """The contract, if it is there and this is the first look. Never fails: its end does not wait for that."""
        if ref in self._found:
            return None
        self._keep(ref, _Found.NO_ANSWER)
        try:
            async with asyncio.timeout(self._timeout_s):
                row = await self._wire.show(ref)
        except (ProviderError, TimeoutError) as error:
            _log.warning("vast: contract %s is destroyed without a look at it: %s", ref, error)
            return None
        if row is None:
            self._keep(ref, _Found.NOTHING)
        return row

    def destroyed(self, ref: str, *, was_there: bool) -> None:
        """The call that destroys was answered."""
        found = self._found.get(ref)
        if found in {_Found.NOTHING, _Found.GONE}:
            self._keep(ref, _Found.NOTHING if was_there else _Found.GONE)

    def is_gone(self, ref: str) -> bool:
        """Whether both calls have said that there is no such contract."""
        return self._found.get(ref) is _Found.GONE

    def _keep(self, ref: str, found: _Found) -> None:
        self._found[ref] = found
        self._found.move_to_end(ref)
        while len(self._found) > _MOST_REMEMBERED:
            self._found.popitem(last=False)
