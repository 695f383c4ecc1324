"""How a machine ended, when the queue has forgotten its job: some minutes after its end, by the cluster's MinJobAge."""

from __future__ import annotations

import logging
from dataclasses import replace

from app.core.model.money import ZERO
from app.errors import ProviderError, RateLimited, Transient
from app.ports.clock import Clock
from app.ports.provider import Machine, MachineStatus
from providers.slurm.commands import SlurmCommands
from providers.slurm.marks import REF, SlurmMark
from providers.slurm.queue import SACCT_COLUMNS, JobLine, Patience, machine_of, read_sacct

log = logging.getLogger(__name__)

_MOST = 1_000
_OFF = "accounting storage is disabled"


class History:
    """What this process has seen, and what the accounting knows, where the cluster has one."""

    def __init__(self, commands: SlurmCommands, clock: Clock) -> None:
        self._commands = commands
        self._clock = clock
        self._seen: dict[str, Machine] = {}
        self._has_accounting = True  # until it is said that there is none

    def see(self, machine: Machine) -> Machine:
        self._seen.pop(machine.ref, None)
        self._seen[machine.ref] = machine
        while len(self._seen) > _MOST:
            del self._seen[next(iter(self._seen))]
        return machine

    async def gone(self, ref: str) -> Machine | None:
        """None for one that was never seen, and that no accounting knows."""
        before = self._seen.get(ref)
        if before is not None and before.status is MachineStatus.ENDED:
            return before
        line = await self._accounted(ref, before)
        if line is not None and not line.is_live:
            return self.see(machine_of(line, Patience(self._clock.now_ms(), 0)))
        if before is None:
            return None
        now_ms = self._clock.now_ms()
        ended_ms = None if before.billed_from_ms is None else max(now_ms, before.billed_from_ms)
        return self.see(replace(before, status=MachineStatus.ENDED, billed_to_ms=ended_ms, ends_ms=None))

    async def _accounted(self, ref: str, before: Machine | None) -> JobLine | None:
        found = REF.fullmatch(ref)
        if found is None or not self._has_accounting:
            return None
        job_id, label = found.groups()
        asked = ("--allocations", "--noheader", "--parsable2", f"--jobs={job_id}", f"--format={SACCT_COLUMNS}")
        try:
            answer = await self._commands.ask("sacct", *asked)
        except RateLimited:
            raise
        except (Transient, ProviderError) as error:
            self._has_accounting = _OFF not in error.message.lower()
            log.info("slurm: no accounting of job %s: %s", job_id, error)
            return None
        price = ZERO if before is None else before.price_per_hour
        return read_sacct(answer, job_id, SlurmMark(label, "", price.micros))
