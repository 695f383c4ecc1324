"""What goes wrong in the parts of this process: told in the log as it happens, kept in the database for everybody."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from app.core.model.health import UNFINISHED_TURNS, PartKind
from app.db.decisions.health import count_failures, set_due, set_health
from app.db.engine import Database
from app.ports.clock import Clock

log = logging.getLogger(__name__)

_MOST_TOLD = 1_000
_LEAST_MS = 60_000  # a part is not said to hang before that


class Health:
    """One per process. `failed` notes one failure of a chore; `finished` keeps what was noted."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._noted: Counter[str] = Counter()
        self._told: set[tuple[str, str, type[BaseException]]] = set()
        self._kept: dict[tuple[PartKind, str], int] = {}  # parts that are kept as working, and until when

    def failed(self, part: str, item: str, error: BaseException) -> None:
        """One item of a part failed. Never waits, never raises."""
        self._noted[part] += 1
        self.tell(part, item, error)

    def tell(self, part: str, item: str, error: BaseException) -> None:
        """In the log alone. The traceback is there the first time only: an item that fails at every turn must not fill
        the disk."""
        told = (part, item, type(error))
        if told in self._told:
            first_line, _, _ = str(error).partition("\n")
            log.warning("%s: %s failed again, the others go on: %s: %s", part, item, type(error).__name__, first_line)
            return
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told.add(told)
        log.error("%s: %s failed, the others go on", part, item, exc_info=error)

    async def begin(self, every_s: Mapping[str, float]) -> None:
        """A new term begins: what another leader has kept is not known here, and every part (by name, how often it has
        its turn) is due anew. Raises nothing."""
        self._kept.clear()
        now_ms = self._clock.now_ms()
        due_ms = {name: now_ms + _unfinished_ms(seconds) for name, seconds in every_s.items()}
        try:
            async with self._database.transaction() as connection:
                await set_due(connection, PartKind.CHORE, due_ms)
        except Exception as error:
            log.warning("when the parts are due is not kept: %s", error)

    async def finished(self, kind: PartKind, name: str, *, every_s: float | None) -> int:
        """A part has had its turn, which comes every so often (None: now and then); returns how many failures it had.
        Raises nothing: to tell of a failure must not be one."""
        failures = self._noted.pop(name, 0)
        now_ms = self._clock.now_ms()
        span_ms = _unfinished_ms(every_s or 0.0)
        if failures or self._kept.get((kind, name), 0) - now_ms < span_ms / 2:
            due_ms = None if every_s is None else now_ms + span_ms
            if await self._keep(kind, name, failures, now_ms, due_ms) and not failures:
                self._kept[kind, name] = now_ms + span_ms
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

    async def _keep(self, kind: PartKind, name: str, failures: int, now_ms: int, due_ms: int | None) -> bool:
        try:
            async with self._database.transaction() as connection:
                await set_health(connection, kind, name, failures=failures, now_ms=now_ms, due_ms=due_ms)
        except Exception as error:
            log.warning("how %s is doing is not kept: %s", name or kind, error)
            return False
        return True


def _unfinished_ms(every_s: float) -> int:
    return max(round(every_s * 1000) * UNFINISHED_TURNS, _LEAST_MS)
