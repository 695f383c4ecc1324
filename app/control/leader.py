"""One leader among any number of control processes."""

from __future__ import annotations

import time
from collections.abc import Callable

from app.db.connection import Connection
from app.db.decisions.leadership import CONTROL, Lease, acquire, check_term, release, renew
from app.db.engine import Database
from app.errors import Fenced

# The share of the lease after which we stop trusting ourselves, counted from before it was asked for.
_TRUSTED_SHARE = 0.7


class Leader:
    """This process's claim to lead. `step` it several times per lease; ask `leads` before any decision.

    Two fences: `leads` turns false by our own monotonic clock well before the lease ends, and `guard` checks the
    term by the database's clock inside every transaction that enacts something.
    """

    def __init__(
        self, database: Database, *, holder: str, lease_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._holder = holder
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._lease: Lease | None = None
        self._trusted_until = 0.0

    @property
    def leads(self) -> bool:
        """Whether this process may still believe that it leads."""
        return self._lease is not None and self._monotonic() < self._trusted_until

    @property
    def term(self) -> int:
        """The term under which it leads. Raises Fenced when it does not."""
        return self._held().term

    async def step(self) -> bool:
        """Hold on to the lease, or try to get it; returns whether this process leads."""
        asked_at = self._monotonic()
        async with self._database.transaction() as connection:
            kept = self._lease is not None and await renew(connection, self._lease, lease_s=self._lease_s)
            lease = self._lease if kept else await acquire(connection, CONTROL, self._holder, lease_s=self._lease_s)
        self._lease = lease
        self._trusted_until = asked_at + self._lease_s * _TRUSTED_SHARE if lease is not None else 0.0
        return self.leads

    async def guard(self, connection: Connection) -> None:
        """Raise Fenced unless this process still leads; nobody else can until the transaction ends."""
        await check_term(connection, self._held())

    async def stand_down(self) -> None:
        """Let another process lead at once. Harmless when this one does not."""
        lease, self._lease, self._trusted_until = self._lease, None, 0.0
        if lease is not None:
            async with self._database.transaction() as connection:
                await release(connection, lease)

    def _held(self) -> Lease:
        if self._lease is None or not self.leads:
            raise Fenced("this process does not lead")
        return self._lease
