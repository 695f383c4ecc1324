"""The control loop of one process: started and stopped as one."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from app.control.budgets import hold_to_budgets
from app.control.caps import hold_to_caps
from app.control.context import ControlContext
from app.control.defragment import Defragmenter
from app.control.doors import DoorRounds
from app.control.garbage import adopt, collect
from app.control.heartbeats import Heartbeats
from app.control.housekeeping import tidy_up
from app.control.images import ImageBuilds
from app.control.leader import Leader
from app.control.learn import learn
from app.control.lifetimes import leave_in_time
from app.control.limits import hold_to_limits
from app.control.loop import ControlLoop
from app.control.meter import read_meters
from app.control.moves import look_after_moves
from app.control.operate import OperationWorkers
from app.control.prices import refresh_offers
from app.control.provider_checks import ProviderChecks
from app.control.sweep import sweep
from app.core.model.health import Chore, PartKind
from app.core.policies import policy_named
from app.db.engine import Database
from app.db.listen import Listener
from app.errors import AllpassError, Fenced, Unavailable
from app.ports.clock import Clock, IdSource
from app.ports.objects import ObjectStore
from app.ports.provider import Provider
from app.settings import Settings

log = logging.getLogger(__name__)

Round = Callable[[], Awaitable[object]]

_STEPS_PER_LEASE = 5
_STEP_AT_MOST_S = 2.0
_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What comes round every so often: chores, one after the other. One that fails does not keep the next from its
    turn."""

    every_s: float
    chores: Mapping[Chore, Round]
    by_every_process: bool = False  # or by the leader alone


class ControlService:
    """Leads when nobody else does; carries operations out in any case.

    The scheduler only starts things: decisions at least every `tick_s`, and the chores. It holds no state, and a
    chore that is still running is not started a second time.
    """

    def __init__(
        self,
        *,
        database: Database,
        listener: Listener,
        providers: Mapping[str, Provider],
        settings: Settings,
        clock: Clock,
        ids: IdSource,
        objects: ObjectStore | None = None,
    ) -> None:
        """Without `objects` nothing is deleted from the object store."""
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        leader = Leader(database, holder=holder, lease_s=settings.leader_lease_s)
        self.context = ControlContext(database, dict(providers), settings, clock, ids, leader)
        self.loop = ControlLoop(self.context, policy_named(settings.policy))
        self.workers = OperationWorkers(self.context)
        self.heartbeats = Heartbeats(self.context, objects)
        self.checks = ProviderChecks(self.context)
        self.images = ImageBuilds(self.context)
        self.defragmenter = Defragmenter(self.context, lambda: self.loop.kept_hosts)
        self._listener = listener
        self._objects = objects
        self._doors: DoorRounds | None = None
        self._scheduler: AsyncIOScheduler | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._chores: set[asyncio.Task[None]] = set()
        self._led_term: int | None = None

    async def start(self) -> None:
        """Begin to stand for leader, to decide and to work. Returns at once; starting twice is harmless."""
        if self._tasks:
            return
        scheduler = AsyncIOScheduler(job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None})
        for name, turn in self._timetable().items():
            scheduler.add_job(self._take_turn, "interval", (name, turn), id=name, seconds=turn.every_s)
        scheduler.add_job(self._tick, "interval", id="control", seconds=self.context.settings.tick_s)
        scheduler.start()
        self._scheduler = scheduler
        self._tasks = [
            asyncio.create_task(self._keep_lease(), name="lead"),
            asyncio.create_task(self.loop.run(self._listener), name="decide"),
            asyncio.create_task(self.workers.run(self._listener), name="operate"),
            asyncio.create_task(self.checks.run(self._listener), name="check providers"),
        ]

    async def stop(self) -> None:
        """Stop deciding and working, then let another process lead. Calls in flight are cancelled and looked up
        later. Stopping twice is harmless."""
        tasks, self._tasks = [*self._tasks, *self._chores], []
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.shutdown(wait=False)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.images.stop()
        try:
            await self.context.leader.stand_down()
        except AllpassError as error:
            log.warning("the lease was not given back, it runs out by itself: %s", error)

    async def do(self, chore: Chore) -> int:
        """One round of a chore, now; returns how many failures it had. Raises nothing."""
        turn = next(turn for turn in self._timetable().values() if chore in turn.chores)
        return await self._attempt(chore, turn) or 0

    def _timetable(self) -> dict[str, Turn]:
        context, settings = self.context, self.context.settings
        lifetimes = {Chore.LIFETIMES: lambda: leave_in_time(context)}
        records = {Chore.HOUSEKEEPING: lambda: tidy_up(context), Chore.LEARN: lambda: learn(context)}
        return {
            "prices": Turn(settings.prices_s, {Chore.PRICES: lambda: refresh_offers(context)}),
            "heartbeats": Turn(settings.heartbeat_check_s, {Chore.HEARTBEATS: self.heartbeats.check}),
            "moves": Turn(settings.heartbeat_check_s, {Chore.MOVES: lambda: look_after_moves(context)}),
            "defrag": Turn(settings.heartbeat_check_s, {Chore.DEFRAG: self.defragmenter.look}),
            "lifetimes": Turn(settings.heartbeat_check_s, lifetimes),
            "images": Turn(settings.heartbeat_check_s, {Chore.IMAGES: self.images.look}),
            "sweep": Turn(settings.sweep_s, {Chore.SWEEP: lambda: sweep(context)}),
            "records": Turn(settings.sweep_s, records),
            # Limits are looked at when the meter was just read, and no less when it was not.
            "meter": Turn(
                settings.meter_s,
                {
                    Chore.METER: lambda: read_meters(context),
                    Chore.CAPS: lambda: hold_to_caps(context),
                    Chore.LIMITS: lambda: hold_to_limits(context),
                    Chore.BUDGETS: lambda: hold_to_budgets(context),
                },
            ),
            "garbage": Turn(settings.collect_s, {Chore.GARBAGE: self._collect}),
            "strays": Turn(settings.strays_s, {Chore.STRAYS: self._adopt}),
            "doors": Turn(settings.heartbeat_check_s, {Chore.DOORS: self._look_at_doors}),
            "providers": Turn(settings.provider_recheck_s, {Chore.PROVIDERS: self.checks.recheck_refused}),
            # The workers carry them out all the time: here is only told what became of it.
            "operations": Turn(settings.heartbeat_check_s, {Chore.OPERATIONS: _nothing}, by_every_process=True),
        }

    async def _tick(self) -> None:
        self.loop.request("tick")

    async def _look_at_doors(self) -> None:
        if self._objects is not None:
            self._doors = self._doors or DoorRounds(self.context, self._objects)
            await self._doors.look()

    async def _collect(self) -> None:
        if self._objects is not None:
            await collect(self.context, self._objects)

    async def _adopt(self) -> None:
        if self._objects is not None:
            await adopt(self.context, self._objects)

    async def _take_turn(self, name: str, turn: Turn) -> None:
        """The outermost frame of chores: what goes wrong is tried again next time; after an outage of the database,
        soon."""
        if not self.context.leader.leads and not turn.by_every_process:
            return
        task = asyncio.current_task()
        assert task is not None
        self._chores.add(task)
        try:
            for chore in turn.chores:
                if await self._attempt(chore, turn) is None:
                    self._bring_forward(name, _RETRY_S)
        except asyncio.CancelledError:
            log.debug("%s ended with its service", name)  # this frame is the outermost: nobody waits for it
        finally:
            self._chores.discard(task)

    async def _attempt(self, chore: Chore, turn: Turn) -> int | None:
        """How many failures it had, which is kept for every process to tell. None: it was cut short, by a database that
        does not answer, or because another process leads now."""
        try:
            await turn.chores[chore]()
        except (Fenced, Unavailable) as error:
            log.warning("%s: tried again soon, by whoever leads then: %s", chore, error)
            return None
        except Exception as error:
            self.context.health.failed(chore, "the whole of it", error)
        return await self.context.health.finished(PartKind.CHORE, chore, every_s=turn.every_s)

    async def _keep_lease(self) -> None:
        pause_s = min(_STEP_AT_MOST_S, self.context.settings.leader_lease_s / _STEPS_PER_LEASE)
        while True:
            try:
                if await self.context.leader.step():
                    await self._on_leading()
            except AllpassError as error:
                log.warning("the lease could not be renewed: %s", error)
            except Exception:
                log.exception("the lease could not be renewed")
            await asyncio.sleep(pause_s)

    async def _on_leading(self) -> None:
        """A new term begins with fresh offers, a comparison and a decision, not with a wait for their turn."""
        term = self.context.leader.term
        if term == self._led_term or self._scheduler is None:
            return
        self._led_term = term
        log.info("this process leads, term %d", term)
        self.heartbeats.forget()
        for name in ("providers", "prices", "images", "sweep", "records"):
            self._bring_forward(name, 0)
        self.loop.request("elected")
        turns: dict[str, float] = {Chore.DECIDE: self.context.settings.tick_s}
        turns |= {chore: turn.every_s for turn in self._timetable().values() for chore in turn.chores}
        await self.context.health.begin(turns)

    def _bring_forward(self, name: str, delay_s: float) -> None:
        """Have a chore run in so many seconds, if its turn comes later than that."""
        job = None if self._scheduler is None else self._scheduler.get_job(name)
        at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=delay_s)
        if job is not None and (job.next_run_time is None or job.next_run_time > at):
            job.modify(next_run_time=at)


async def _nothing() -> None:
    return None
