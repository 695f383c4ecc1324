"""How fast elastic runs are with each number of GPUs: measured while they have it, and kept for their app."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from app.control.context import ControlContext
from app.control.each import each
from app.core.elastic.profile import MeasuredSpeed, SpeedProfile
from app.core.elastic.runs import ElasticRun
from app.core.elastic.size_table import KeptSpeed, profile_of
from app.core.machine_clock import TOLERATED_MS
from app.core.model.health import Chore
from app.core.throughput import Throughput
from app.db.connection import Connection
from app.services.sizes.measure_sizes import (
    AskedSpeed,
    FoundSpeed,
    keep_speed,
    look_at_speeds,
    predicted_speeds,
    read_stated,
)

_LOOK_MS = 15_000
_AGAIN_MS = 600_000  # a run that keeps its GPUs is measured again so often


class SpeedKeeper:
    """One per control loop. It remembers since when each run has had its GPUs, and what it was measured at itself."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._since: dict[str, tuple[int, int]] = {}  # by run: GPUs that it uses, since when
        self._own: dict[str, dict[int, MeasuredSpeed]] = {}
        self._measured_ms: dict[str, tuple[int, int]] = {}  # by run: GPUs, and when
        self._predicted: dict[str, Mapping[int, float]] = {}
        self._kept: Mapping[str, Mapping[int, KeptSpeed]] = {}
        self._looked_ms: int | None = None

    async def profiles(self, runs: Sequence[ElasticRun]) -> dict[str, SpeedProfile]:
        """Of each of these runs."""
        now_ms = self._context.clock.now_ms()
        ids = {run.run_id for run in runs}
        is_new = bool(ids - self._predicted.keys())
        self._forget_others(ids)
        self._note(runs, now_ms)
        if is_new or self._looked_ms is None or not 0 <= now_ms - self._looked_ms < _LOOK_MS:
            self._looked_ms = now_ms
            await self._look(runs, now_ms)
        return {
            run.run_id: profile_of(
                run.asked,
                self._kept.get(run.run_id, {}),
                self._own.get(run.run_id, {}),
                self._predicted.get(run.run_id, {}),
            )
            for run in runs
        }

    def _forget_others(self, ids: set[str]) -> None:
        """What is remembered of runs that are over."""
        known: tuple[dict[str, Any], ...] = (self._since, self._own, self._measured_ms, self._predicted)
        for one in known:
            for run_id in one.keys() - ids:
                del one[run_id]

    def _note(self, runs: Sequence[ElasticRun], now_ms: int) -> None:
        """Since when each has had what it has: a change that is under way is none of them."""
        for run in runs:
            gpus = len(run.told.used)
            if not run.uses_all:
                self._since.pop(run.run_id, None)
            elif self._since.get(run.run_id, (0, 0))[0] != gpus:
                self._since[run.run_id] = (gpus, now_ms)

    def _is_due(self, run_id: str, now_ms: int) -> bool:
        gpus, _ = self._since[run_id]
        before, at_ms = self._measured_ms.get(run_id, (0, 0))
        return before != gpus or not 0 <= now_ms - at_ms < _AGAIN_MS

    async def _look(self, runs: Sequence[ElasticRun], now_ms: int) -> None:
        context = self._context
        asked = [
            AskedSpeed(run_id, gpus, since_ms + TOLERATED_MS)
            for run_id, (gpus, since_ms) in self._since.items()
            if self._is_due(run_id, now_ms)
        ]
        async with context.database.transaction() as connection:
            known = await look_at_speeds(connection, [run.run_id for run in runs], asked)
        self._kept = known.kept

        async def act(connection: Connection, found: FoundSpeed) -> None:
            await keep_speed(connection, found, now_ms=now_ms)

        for found in known.found:
            self._own.setdefault(found.of.run_id, {})[found.gpus] = found.speed
            self._measured_ms[found.of.run_id] = (found.gpus, now_ms)
        await each(context, Chore.LEND, known.found, act, named=lambda found: found.of.run_id)
        await self._predict([run.run_id for run in runs if run.run_id not in self._predicted])

    async def _predict(self, run_ids: Sequence[str]) -> None:
        """Once of a run: what it shows itself counts more from then on."""
        if not run_ids:
            return
        async with self._context.database.transaction() as connection:
            stated, throughputs = await read_stated(connection, run_ids)
        self._predicted |= {run_id: {} for run_id in run_ids}
        for one in stated:
            table = throughputs.get(one.project_id) or Throughput()
            self._predicted[one.run_id] = await asyncio.to_thread(predicted_speeds, one, table)
