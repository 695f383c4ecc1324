"""When each shape would start: what Slurm's own trial says, of those whose partition takes jobs."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping

from app.errors import OutcomeUnknown
from app.ports.clock import Clock
from providers.slurm.commands import SlurmCommands, refusal
from providers.slurm.options import SlurmOptions
from providers.slurm.queue import instant_ms
from providers.slurm.shapes import SlurmShape, seconds_of
from providers.slurm.submission import resources

log = logging.getLogger(__name__)

_AT_ONCE = 4
_STARTS = re.compile(r"[Jj]ob [0-9]+ to start at (\S+)")
_TRIAL = "#!/bin/sh\nexit 0\n"


class Outlook:
    """Tells the log why a shape has nothing to offer, once for each new reason."""

    def __init__(self, commands: SlurmCommands, options: SlurmOptions, clock: Clock) -> None:
        self._commands = commands
        self._options = options
        self._clock = clock
        self._told: dict[str, str] = {}

    async def waits_ms(self, shapes: Iterable[SlurmShape]) -> dict[str, int]:
        """How long each shape would wait, of those that would start in time. Raises Transient, AuthFailed and
        RateLimited where nothing at all can be known."""
        wanted = list(shapes)
        if not wanted:
            return {}
        up = await self._partitions_up()
        gate = asyncio.Semaphore(_AT_ONCE)

        async def wait(shape: SlurmShape) -> int | None:
            async with gate:
                return await self._wait_ms(shape, up)

        found = await asyncio.gather(*(wait(shape) for shape in wanted))
        return {shape.name: wait_ms for shape, wait_ms in zip(wanted, found, strict=True) if wait_ms is not None}

    def why(self, shape: SlurmShape) -> str:
        """What the last trial said against it."""
        return self._told.get(shape.name, "")

    async def _partitions_up(self) -> dict[str, int | None]:
        """Those that take jobs, each with the longest time in seconds; None: no limit."""
        answer = await self._commands.ask("sinfo", "--noheader", "--format=%R|%a|%l")
        rows = ([cell.strip() for cell in line.split("|")] for line in answer.splitlines())
        return {row[0]: seconds_of(row[2]) or None for row in rows if len(row) == 3 and row[1] == "up"}

    async def _wait_ms(self, shape: SlurmShape, up: Mapping[str, int | None]) -> int | None:
        if shape.partition not in up:
            self._nothing(shape, f"partition {shape.partition} is not up, or this user may not see it")
            return None
        most_s = up[shape.partition]
        if most_s is not None and shape.time_limit_s > most_s:  # a trial does not look at it
            self._nothing(shape, f"its time_limit {shape.time_limit} is more than partition {shape.partition} gives")
            return None
        try:
            said = await self._commands.run("sbatch", "--test-only", *resources(shape), stdin=_TRIAL)
        except OutcomeUnknown as error:  # a trial has no outcome
            self._nothing(shape, error.message)
            return None
        found = _STARTS.search(f"{said.err}\n{said.out}")
        start_ms = None if found is None else instant_ms(found.group(1))
        if said.code != 0 or start_ms is None:
            refused = refusal("sbatch", said)
            self._nothing(shape, said.words if refused is None else refused.message)
            return None
        wait_ms = max(0, start_ms - self._clock.now_ms())
        if wait_ms > self._options.max_wait_ms:
            limit_s = self._options.max_wait_ms / 1000
            self._nothing(shape, f"it would start in more than {limit_s:g} s (ALLPASS_SLURM_MAX_WAIT_S)")
            return None
        self._told.pop(shape.name, None)
        return wait_ms

    def _nothing(self, shape: SlurmShape, why: str) -> None:
        if self._told.get(shape.name) != why:
            self._told[shape.name] = why
            log.info("slurm: shape %s offers nothing: %s", shape.name, why)
