"""The turns of every provider's lanes, given out to all processes by one row each and the database's clock."""

from __future__ import annotations

import datetime as dt
import math

from app.db.engine import Database
from app.errors import Transient, Unavailable
from app.ports.clock import Clock
from app.ports.pace import check_patience


class DatabasePace:
    """Implements `app.ports.pace.Pace` for one provider, across all processes that share the database.

    A turn is taken by one statement, which is durable before the caller goes on: a process that dies while it waits
    leaves its turn unused, and never one that two may use.
    """

    def __init__(self, database: Database, provider: str, *, clock: Clock, patience_ms: int) -> None:
        self._database = database
        self._provider = provider
        self._clock = clock
        self._patience_ms = patience_ms

    async def turn(self, lane: str, every_ms: int) -> None:
        """See `app.ports.pace.Pace.turn`. Raises Transient when the database does not answer: nothing was called."""
        try:
            wait_ms = await self._take(lane, every_ms)
        except Unavailable as error:
            raise Transient(f"no turn for {lane}: {error.message}") from error
        check_patience(lane, wait_ms, self._patience_ms)
        if wait_ms > 0:
            await self._clock.sleep_ms(wait_ms)

    async def _take(self, lane: str, every_ms: int) -> int:
        """Milliseconds until the turn: ours when it is within our patience, else one that somebody else may take."""
        every, patience = dt.timedelta(milliseconds=every_ms), dt.timedelta(milliseconds=self._patience_ms)
        async with self._database.driver() as connection:
            wait_s = await connection.fetchval(_TAKE, self._provider, lane, every, patience)
            if wait_s is None:
                wait_s = await connection.fetchval(_LOOK, self._provider, lane)
                # A turn that came near between the two statements is not ours: ask for it in a moment.
                return max(self._patience_ms + 1, math.ceil(float(wait_s or 0) * 1000))
        return max(0, math.ceil(float(wait_s) * 1000))


# The row is locked before the clock is read, so that turns are given out in order and `every` apart.
_TAKE = """
    INSERT INTO provider_paces AS p (provider, lane, next_at)
    VALUES ($1, $2, clock_timestamp() + $3::interval)
    ON CONFLICT (provider, lane) DO UPDATE
        SET next_at = greatest(p.next_at, clock_timestamp()) + $3::interval
        WHERE p.next_at <= clock_timestamp() + $4::interval
    RETURNING extract(epoch FROM next_at - $3::interval - clock_timestamp())
"""

_LOOK = """
    SELECT extract(epoch FROM next_at - clock_timestamp()) FROM provider_paces WHERE provider = $1 AND lane = $2
"""
