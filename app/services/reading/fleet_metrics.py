"""Keep the service's numbers ready for monitoring: asked for often, read from the database seldom."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from app.core.model.health import PartHealth
from app.db.decisions.health import read_health
from app.db.engine import Database
from app.db.offers.provider_reads import error_counts
from app.db.offers.provider_states import ErrorCount, ProviderState, provider_states_now
from app.db.reading.fleet import Count, News, TickBrief, read_news, read_signals, read_standing, read_ticks
from app.errors import AllpassError
from app.ports.clock import Clock
from app.services.kit.histogram import Histogram

KEPT_MS = 5_000
# Moments are told by the clocks of several processes and committed a little later: so far back is read again.
OVERLAP_MS = 120_000
WAIT_BOUNDS_S = (1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)
OPERATION_BOUNDS_S = (0.1, 0.3, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
TICK_BOUNDS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


@dataclass(slots=True)
class FleetMetrics:
    """`standing`, `tick` and `signals` are of now; the others count what happened since this process was first asked.

    `known`: the database answered.
    """

    known: bool = False
    standing: list[Count] = field(default_factory=list)
    tick: TickBrief | None = None
    signals: dict[str, float] = field(default_factory=dict)
    providers: list[ProviderState] = field(default_factory=list)
    provider_errors: list[ErrorCount] = field(default_factory=list)  # since the database was made
    health: list[PartHealth] = field(default_factory=list)  # with all failures since the database was made
    queue_wait: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS_S))
    tick_time: Histogram = field(default_factory=lambda: Histogram(TICK_BOUNDS_S))
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)  # by state and reason
    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by provider, kind and error code or ok
    operation_time: dict[tuple[str, str], Histogram] = field(default_factory=dict)  # by provider and kind


class FleetWatch:
    """One per process; any number may ask at once, and one of them reads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._fleet = FleetMetrics()
        self._read_ms: int | None = None
        self._since_ms: int | None = None
        self._counted: dict[tuple[str, str], int] = {}
        self._one_reads = asyncio.Lock()

    async def look(self) -> FleetMetrics:
        """The numbers, at most five seconds old; the last known ones, told to be old, when the database is away."""
        async with self._one_reads:
            now_ms = self._clock.now_ms()
            if self._read_ms is None or not 0 <= now_ms - self._read_ms < KEPT_MS:
                try:
                    await self._read(now_ms)
                    self._fleet.known = True
                except AllpassError:
                    self._fleet.known = False
                self._read_ms = now_ms
            return self._fleet

    async def _read(self, now_ms: int) -> None:
        fleet = self._fleet
        since_ms = now_ms if self._since_ms is None else self._since_ms
        async with self._database.transaction() as connection:
            standing = await read_standing(connection)
            news = await read_news(connection, since_ms=since_ms)
            ticks = await read_ticks(connection, after=None if fleet.tick is None else fleet.tick.number)
            signals = await read_signals(connection, ticks[-1].number) if ticks else fleet.signals
            fleet.providers = await provider_states_now(connection)
            fleet.provider_errors = await error_counts(connection)
            fleet.health = await read_health(connection)
        fleet.standing, fleet.signals = standing, signals
        for one in news:
            if (one.what, one.row_id) not in self._counted:
                self._count(one)
                self._counted[one.what, one.row_id] = one.at_ms
        for tick in ticks:
            fleet.tick_time.observe(tick.duration_ms / 1000)
            fleet.tick = tick
        # From the first look on, not before it; what is counted is remembered as long as it may be read again.
        first = self._since_ms is None
        self._since_ms = since_ms if first else max(since_ms, now_ms - OVERLAP_MS)
        self._counted = {key: at for key, at in self._counted.items() if at >= self._since_ms}

    def _count(self, news: News) -> None:
        fleet, took_s = self._fleet, max(0, news.took_ms) / 1000
        if news.what == "started":
            fleet.queue_wait.observe(took_s)
        elif news.what == "ended":
            fleet.ended[news.labels[0], news.labels[1]] += 1
        else:
            provider, kind, _ = news.labels
            fleet.outcomes[news.labels] += 1
            fleet.operation_time.setdefault((provider, kind), Histogram(OPERATION_BOUNDS_S)).observe(took_s)
