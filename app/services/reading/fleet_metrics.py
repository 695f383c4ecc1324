"""Keep the service's numbers ready for monitoring: asked for often, read from the database seldom."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from app.core.model.health import PartHealth
from app.db.connection import Connection
from app.db.counting.counts import HappenedRow, read_counts
from app.db.counting.series import SOURCES, CountedSeries
from app.db.decisions.health import read_health
from app.db.decisions.item_failures import count_items
from app.db.engine import Database
from app.db.money.budgets import budgets_now
from app.db.offers.provider_reads import error_counts
from app.db.offers.provider_states import ErrorCount, ProviderState, provider_states_now
from app.db.reading.fleet import Count, TickBrief, read_last_tick, read_standing
from app.db.unreadable import RowReading
from app.errors import AllpassError
from app.ports.clock import Clock
from app.services.kit.histogram import Histogram

KEPT_MS = 5_000

Happened = dict[CountedSeries, dict[tuple[str, ...], Histogram]]


@dataclass(slots=True)
class FleetMetrics:
    """All of the database, so that every process tells the same. `known`: it answered."""

    known: bool = False
    now_ms: int = 0
    standing: list[Count] = field(default_factory=list)
    tick: TickBrief | None = None
    budgets: Counter[str] = field(default_factory=Counter)  # by how much of them is spent
    providers: list[ProviderState] = field(default_factory=list)
    provider_errors: list[ErrorCount] = field(default_factory=list)  # since the database was made
    health: list[PartHealth] = field(default_factory=list)  # with all failures since the database was made
    items: dict[str, int] = field(default_factory=dict)  # jobs, nodes and rows that fail now, by what fails of them
    happened: Happened = field(default_factory=dict)  # by labels, since the database was made


class FleetWatch:
    """One per process; any number may ask at once, and one of them reads."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._fleet = FleetMetrics()
        self._read_ms: int | None = None
        self._one_reads = asyncio.Lock()

    async def look(self) -> FleetMetrics:
        """The numbers, at most five seconds old; none that anybody knows when the database is away."""
        async with self._one_reads:
            now_ms = self._clock.now_ms()
            if self._read_ms is None or not 0 <= now_ms - self._read_ms < KEPT_MS:
                try:
                    async with self._database.transaction() as connection:
                        self._fleet = await _read(connection, now_ms)
                except AllpassError:
                    self._fleet = FleetMetrics()
                self._read_ms = now_ms
            return self._fleet


async def _read(connection: Connection, now_ms: int) -> FleetMetrics:
    return FleetMetrics(
        known=True,
        now_ms=now_ms,
        standing=await read_standing(connection, now_ms=now_ms),
        tick=await read_last_tick(connection),
        budgets=await _budgets(connection, now_ms),
        providers=await provider_states_now(connection),
        provider_errors=await error_counts(connection),
        health=await read_health(connection),
        items={what: number for what, number, _ in await count_items(connection)},
        happened=_happened(await read_counts(connection)),
    )


async def _budgets(connection: Connection, now_ms: int) -> Counter[str]:
    """One that cannot be read is told of by whoever decides, and counts nowhere."""
    counted = Counter({"within": 0, "near": 0, "used_up": 0})
    reading = RowReading()
    read = partial(budgets_now, connection, reading, now_ms=now_ms)
    for one in await reading.aside(connection, "budgets", read, []):
        counted["used_up" if one.used_up else "near" if one.near else "within"] += 1
    return counted


def _happened(rows: Iterable[HappenedRow]) -> Happened:
    found: Happened = {series: {} for series in CountedSeries}
    for row in rows:
        series = next((one for one in CountedSeries if one == row.series), None)
        if series is not None:  # a newer release may keep more
            bounds = SOURCES[series].bounds_s or ()
            histogram = found[series].setdefault(row.labels, Histogram(bounds))
            histogram.add(row.le_s, row.number, row.total_ms / 1000)
    return found
