"""A Slurm cluster as a provider: one tier, one's own. A machine is a job of one node."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections import Counter

from app.core.model.ids import is_id
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.errors import (
    InvalidRequest,
    NoCapacity,
    OfferGone,
    OutcomeUnknown,
    PriceMoved,
    ProviderError,
    Transient,
)
from app.ports.clock import Clock
from app.ports.pace import Pace
from app.ports.provider import Machine, MachineRequest, MachineStatus
from providers.slurm.commands import CommandAnswer, SlurmCommands, refusal
from providers.slurm.history import History
from providers.slurm.logs import JobLogs
from providers.slurm.marks import REF, SlurmMark, ref_of
from providers.slurm.options import SlurmOptions
from providers.slurm.outlook import Outlook
from providers.slurm.queue import NAME, JobLine, Patience, machine_of, read_squeue, squeue_format
from providers.slurm.script import batch_script
from providers.slurm.shapes import SlurmShape
from providers.slurm.submission import offer_of, order

_BILLING = BillingRule(1_000, BillingStart.READY)
_SUBMITTED = re.compile(r"([0-9]{1,10})(?:;[A-Za-z0-9_.-]+)?")
_OVER = ("invalid job id specified", "job/step already completing or completed")


class SlurmProvider:
    """Implements `app.ports.provider.Provider`. No call is ever made twice.

    Only jobs of this process's user are asked for, however many the queue holds; of those, only such with our mark are
    looked at, and what is ended is ended by number and name together.
    """

    name = NAME

    def __init__(self, options: SlurmOptions, *, clock: Clock, pace: Pace) -> None:
        self._options = options
        self._shapes = {shape.name: shape for shape in options.shapes}
        self._clock = clock
        self._user = str(os.getuid())
        self._commands = SlurmCommands(options, pace=pace)
        self._outlook = Outlook(self._commands, options, clock)
        self._logs = JobLogs(options.log_folder)
        self._history = History(self._commands, clock)

    def traits(self) -> tuple[ProviderTraits, ...]:
        """Each machine says itself when it ends: its time is limited."""
        return (
            ProviderTraits(
                provider=NAME,
                tier=Tier.OWN,
                billing=_BILLING,
                startup_mean_ms=self._options.startup_ms,
                startup_deadline_ms=self._options.max_wait_ms + self._options.startup_deadline_ms,
                create_grace_ms=self._options.create_grace_ms,
                dies_with_run=False,
                preemptible=True,
                takes_images=False,
                is_networked=True,
            ),
        )

    async def offers(self) -> list[Offer]:
        """One for each shape that has fewer machines than it may, and would start in time."""
        used = Counter(line.mark.shape for line in await self._jobs() if line.is_live)
        open_shapes = [shape for shape in self._shapes.values() if used[shape.name] < shape.most]
        waits = await self._outlook.waits_ms(open_shapes)
        return [offer_of(self._shapes[name], wait_ms, self._options) for name, wait_ms in waits.items()]

    async def create(self, request: MachineRequest) -> Machine:
        """Submit exactly one job. OutcomeUnknown as soon as it may have been accepted without a clear answer, and when
        there is one with this label already: whoever asks looks then, and finds it."""
        shape, mark = self._agreed(request)
        script = batch_script(request, self._options)
        live = [line for line in await self._jobs() if line.is_live]
        twin = next((line for line in live if line.mark.label == mark.label), None)
        if twin is not None:
            raise OutcomeUnknown(f"job {twin.job_id} has the label {mark.label} already")
        if sum(line.mark.shape == shape.name for line in live) >= shape.most:
            raise NoCapacity(f"shape {shape.name} has {shape.most} machines, as many as it may have at once")
        if shape.name not in await self._outlook.waits_ms([shape]):
            raise NoCapacity(f"shape {shape.name} would not start in time now: {self._outlook.why(shape)}")
        await asyncio.to_thread(self._logs.open, mark.label, self._clock.now_ms())
        told = order(shape, mark, self._options, log=self._logs.path_of(mark.label))
        said = await self._commands.run("sbatch", *told, stdin=script)
        job_id = _submitted(said)
        now_ms = self._clock.now_ms()
        price, tier, booting = Money(mark.micros), Tier.OWN, MachineStatus.BOOTING
        ref = ref_of(job_id, mark.label)
        return self._history.see(Machine(NAME, ref, mark.label, tier, booting, price, now_ms, None, None))

    async def get(self, ref: str) -> Machine | None:
        """One that the queue has forgotten is told as ended: from the accounting, else from what was seen here."""
        line = next((line for line in await self._jobs() if line.ref == ref), None)
        return await self._history.gone(ref) if line is None else self._seen(line)

    async def find(self, label: str) -> list[Machine]:
        return [machine for machine in await self._machines() if machine.label == label]

    async def list_owned(self) -> list[Machine]:
        return await self._machines()

    async def terminate(self, ref: str) -> None:
        """Slurm tells it to end, and kills it after its KillWait. By number and name: a job of anybody else with that
        number is not touched. What is gone already is a success."""
        found = REF.fullmatch(ref)
        if found is None:
            await self._jobs()  # whether it is none can be said only where Slurm answers
            return
        job_id, label = found.groups()
        try:
            await self._commands.ask("scancel", f"--user={self._user}", f"--name={label}", job_id)
        except Transient as error:
            if not any(words in error.message.lower() for words in _OVER):
                raise
            if any(line.ref == ref and line.is_live and line.state != "COMPLETING" for line in await self._jobs()):
                raise

    async def logs(self, ref: str, tail_lines: int) -> str:
        """What the job has written; empty without a folder for logs, which both sides see."""
        found = REF.fullmatch(ref)
        if await self.get(ref) is None or found is None:
            return ""
        return await asyncio.to_thread(self._logs.tail, found.group(2), tail_lines)

    async def close(self) -> None:
        """Nothing is held."""

    def _seen(self, line: JobLine) -> Machine:
        patience = Patience(self._clock.now_ms(), self._options.max_wait_ms)
        return self._history.see(machine_of(line, patience))

    async def _machines(self) -> list[Machine]:
        return [self._seen(line) for line in await self._jobs()]

    async def _jobs(self) -> list[JobLine]:
        """All that the queue still tells of, ended ones included. Raises Transient where it does not answer."""
        nonce = secrets.token_hex(8)
        asked = (f"--user={self._user}", "--states=all", "--noheader", f"--format={squeue_format(nonce)}")
        return read_squeue(await self._commands.ask("squeue", *asked), nonce)

    def _agreed(self, request: MachineRequest) -> tuple[SlurmShape, SlurmMark]:
        offer = request.offer
        if offer.provider != NAME:
            raise InvalidRequest(f"offer {offer.key} is not one of provider {NAME}")
        if not is_id(request.label, "node"):
            raise InvalidRequest(f"label {request.label!r:.80} cannot name a job: it must be a node's id")
        shape = self._shapes.get(offer.offer_id)
        if shape is None:
            raise OfferGone(f"ALLPASS_SLURM_SHAPES has no shape {offer.offer_id} now")
        if offer.price_per_hour > request.max_price_per_hour:
            raise PriceMoved(f"{offer.key} is {offer.price_per_hour} an hour, agreed were {request.max_price_per_hour}")
        return shape, SlurmMark(request.label, shape.name, offer.price_per_hour.micros)


def _submitted(said: CommandAnswer) -> str:
    """The job's number. What is not clearly one answer or the other is OutcomeUnknown."""
    lines = said.out.split()
    found = _SUBMITTED.fullmatch(lines[-1]) if said.code == 0 and lines else None
    if found is not None:
        return found.group(1)
    if said.code == 0:
        raise OutcomeUnknown(f"sbatch answered {said.out[:100]!r}, which names no job")
    error: ProviderError | None = refusal("sbatch", said)
    raise error or OutcomeUnknown(f"whether sbatch had a job begin is not clear: {said.words}")
