"""What goes wrong in the parts of this process: told in the log as it happens, kept in the database for everybody."""

from __future__ import annotations

import logging
from collections import Counter

from app.core.model.health import PartKind
from app.db.engine import Database
from app.db.health import count_failures, keep_health
from app.ports.clock import Clock

log = logging.getLogger(__name__)

_MOST_TOLD = 1_000
# A part that has not finished for so many of its turns, and for so long, hangs.
_TURNS = 5
_LEAST_MS = 60_000


class Health:
    """One per process. `failed` notes one failure of a chore; `finished` keeps what was noted."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._noted: Counter[str] = Counter()
        self._told: set[tuple[str, str, type[Exception]]] = set()
        self._kept: dict[tuple[PartKind, str], int] = {}  # parts that are kept as working, and until when

    def failed(self, part: str, item: str, error: Exception) -> None:
        """One item of a part failed. Never waits, never raises. The traceback is in the log the first time only: an
        item that fails at every turn must not fill the disk."""
        self._noted[part] += 1
        told = (part, item, type(error))
        if told in self._told:
            log.warning("%s: %s failed again, the others go on: %s: %s", part, item, type(error).__name__, error)
            return
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told.add(told)
        log.error("%s: %s failed, the others go on", part, item, exc_info=error)

    def forget(self) -> None:
        """A new term begins: what another leader has kept is not known here."""
        self._kept.clear()

    async def finished(self, kind: PartKind, name: str, *, every_s: float) -> int:
        """A part has had its turn, which comes every so often; returns how many failures it had. Raises nothing: to
        tell of a failure must not be one."""
        failures = self._noted.pop(name, 0)
        now_ms = self._clock.now_ms()
        until_ms = max(round(every_s * 1000) * _TURNS, _LEAST_MS)
        if failures or self._kept.get((kind, name), 0) - now_ms < until_ms / 2:
            due_ms = now_ms + until_ms
            if await self._keep(kind, name, failures, now_ms, due_ms) and not failures:
                self._kept[kind, name] = due_ms
            else:
                self._kept.pop((kind, name), None)
        return failures

    async def count(self, kind: PartKind, counts: Counter[str]) -> None:
        """Add to what has failed ever. Raises nothing."""
        try:
            async with self._database.transaction() as connection:
                for name, count in sorted(counts.items()):
                    await count_failures(connection, kind, name, count)
        except Exception as error:
            log.warning("what failed is not counted: %s", error)

    async def _keep(self, kind: PartKind, name: str, failures: int, now_ms: int, due_ms: int) -> bool:
        try:
            async with self._database.transaction() as connection:
                await keep_health(connection, kind, name, failures=failures, now_ms=now_ms, due_ms=due_ms)
        except Exception as error:
            log.warning("how %s is doing is not kept: %s", name or kind, error)
            return False
        return True
