"""Observe, decide, enact: one decision at a time, by the leader only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.control.context import ControlContext, as_ms
from app.control.dropping import Dropped
from app.control.each import in_batches
from app.control.enact import enact_apart
from app.control.evict import Evictor
from app.control.failed_actions import due, note_outcomes
from app.control.failed_decisions import choose, note_failures
from app.control.gangs import GangPlacer
from app.control.images import want_images
from app.control.judge import sound_plan
from app.control.lend import Lender
from app.control.observe import Observation, observe
from app.control.rank_hosts import ranked_plan
from app.control.record import Records
from app.control.reserve import ReservationKeeper
from app.control.standby import StandbyKeeper
from app.control.starting_sizes import StartSizer
from app.control.telling import Telling
from app.control.vacating import VacatedNodes
from app.core.deciding import Decided
from app.core.following import KeptBoard
from app.core.model.health import Chore, PartKind
from app.core.model.plan import Plan
from app.core.model.snapshot import Snapshot
from app.core.policy import Policy, PolicyConfig, PolicyState
from app.db.decisions.changed_rows import Looked, has_news
from app.db.decisions.enactment import set_wait_reasons
from app.db.decisions.snapshots import Memory
from app.db.decisions.ticks import last_state
from app.db.listen import Listener
from app.db.notify import CONTROL
from app.errors import Fenced, Unavailable
from app.services.decisions.policy_settings import policy_config

log = logging.getLogger(__name__)

_ACTIONS_AT_ONCE = 100
_MOST_ACTIONS = 200  # of one decision: who comes meanwhile waits for no more than these
_WAITING_AT_ONCE = 1_000
_SHORT_S = 0.1


@dataclass(frozen=True, slots=True)
class Decision:
    """What one tick decided and what of it could not be enacted."""

    snapshot: Snapshot
    plan: Plan
    dropped: tuple[Dropped, ...]


class ControlLoop:
    """Woken by changes, by the time a plan asked for, and by a poll behind both."""

    def __init__(self, context: ControlContext, policy: Policy) -> None:
        self._context = context
        self._policy = policy
        self._config = policy_config(context.settings)
        self._one_at_a_time = asyncio.Lock()
        self._term: int | None = None
        self._state = PolicyState()
        self._records = Records(context)
        self._stored_ms: int | None = None
        self._memory = Memory()
        self._board = KeptBoard()
        self._telling = Telling()
        self._lender = Lender(context)
        self._sizer = StartSizer(context)
        self._evictor = Evictor(context)
        self._gangs = GangPlacer(context)
        self._vacated = VacatedNodes(context)
        self._standby = StandbyKeeper(context)
        self._reservations = ReservationKeeper(context)
        self._looked: Looked | None = None
        self._wake_at_ms: int | None = None
        self._requested: str | None = None
        self._woken = asyncio.Event()

    @property
    def kept_hosts(self) -> Mapping[str, str]:
        """Hosts of pools that are kept for jobs on several machines, by whose they are."""
        return self._gangs.kept_hosts

    def request(self, trigger: str) -> None:
        """Decide soon, because of `trigger`; requests that come together are one."""
        self._requested = trigger
        self._woken.set()

    async def run(self, listener: Listener) -> None:
        """Decide whenever there is reason to, until cancelled."""
        with listener.watch(CONTROL) as heard:
            self._woken = heard
            while True:
                try:
                    trigger = await self._next_trigger()
                    if trigger is not None:
                        started = time.monotonic()
                        await self.tick(trigger)
                        await self._breathe(time.monotonic() - started)
                except (Fenced, Unavailable) as error:
                    log.warning("this decision was given up, the next one follows: %s", error)
                    await self._rest()
                except Exception as error:
                    await self._tell_failed(error)
                    await self._rest()

    async def tick(self, trigger: str) -> Decision | None:
        """One decision, enacted and stored. None when this process does not lead. Raises Fenced when it lost the
        lead meanwhile: nothing is written then."""
        async with self._one_at_a_time:
            if not self._context.leader.leads:
                self._term, self._wake_at_ms = None, None
                return None
            await self._resume_state()
            started = time.monotonic()
            seen = self._lender.tell(await self._gangs.place(await self._see(), self._evictor.for_gangs))
            told = self._telling.begin(seen.snapshot.jobs, seen.snapshot.now_ms)
            config = replace(self._config, told=told)
            decided = await asyncio.to_thread(self._choose, seen, config)
            await note_failures(self._context, seen, decided)
            plan, dropped = await self._write(trigger, seen, decided, config, started)
            self._state = decided.state
            self._wake_at_ms = self._next_wake_ms(seen, plan, dropped)
            await self._finished()
            return Decision(seen.snapshot, plan, dropped)

    async def _see(self) -> Observation:
        """The world as it is for policies: without what is lent, reserved, kept for somebody, or being vacated; jobs
        begin with as many GPUs as their deadlines need."""
        await self._reservations.settle()
        await self._standby.begin_windows()
        seen = await self._standby.keep(await self._observe())
        seen = await self._evictor.keep(await self._reservations.close_to_others(seen))
        if await self._reservations.clear(seen, self._evictor.closed):
            seen = await self._evictor.keep(seen)
        return await self._sizer.size(await self._vacated.close(seen))

    async def _tell_failed(self, error: Exception) -> None:
        self._context.health.failed(Chore.DECIDE, "a decision", error)
        await self._context.health.count(PartKind.DECISION, Counter({"": 1}))
        await self._finished()

    async def _finished(self) -> None:
        health = self._context.health
        await health.finished(PartKind.CHORE, Chore.DECIDE, every_s=self._context.settings.tick_s)
        for chore in (Chore.TELL, Chore.LEND, Chore.EVICT, Chore.GANGS, Chore.STANDBY, Chore.RESERVE):
            await health.finished(PartKind.CHORE, chore, every_s=None)

    async def _observe(self) -> Observation:
        seen = await observe(self._context, self._memory)
        self._looked = seen.looked
        return seen

    def _choose(self, seen: Observation, config: PolicyConfig) -> Decided:
        return choose(self._policy, seen, self._state, config, self._board)

    def _next_wake_ms(self, seen: Observation, plan: Plan, dropped: tuple[Dropped, ...]) -> int | None:
        """When the plan wants the next decision, soon when something was dropped or was too much, and when something
        that failed is to be tried again; never at once again."""
        now_ms = seen.snapshot.now_ms
        wakes = [now_ms + as_ms(self._context.settings.poll_s)] if dropped or len(plan.actions) == _MOST_ACTIONS else []
        wakes += [
            at_ms
            for at_ms in (
                seen.next_try_ms(),
                self._telling.wake_ms(),
                self._lender.wake_at_ms,
                self._evictor.wake_at_ms,
                self._gangs.wake_at_ms,
                self._standby.wake_at_ms,
                self._reservations.wake_at_ms,
            )
            if at_ms is not None
        ]
        if plan.wake_at_ms is not None and plan.wake_at_ms > now_ms:
            wakes.append(plan.wake_at_ms)
        return min(wakes, default=None)

    async def _next_trigger(self) -> str | None:
        """Wait for a reason to decide: the name of it, or None when there was none after all."""
        wait_s = self._context.settings.poll_s
        if self._wake_at_ms is not None:
            until_wake_s = (self._wake_at_ms - self._context.clock.now_ms()) / 1000
            wait_s = min(wait_s, max(0.0, until_wake_s))
        try:
            async with asyncio.timeout(wait_s):
                await self._woken.wait()
        except TimeoutError:
            return await self._polled()
        self._woken.clear()
        trigger, self._requested = self._requested or "change", None
        return trigger

    async def _polled(self) -> str | None:
        if not self._context.leader.leads:
            self._wake_at_ms = None
            return None
        if self._wake_at_ms is not None and self._context.clock.now_ms() >= self._wake_at_ms:
            self._wake_at_ms = None
            return "wake"
        if self._looked is None:
            return "poll"
        async with self._context.database.transaction() as connection:
            return "poll" if await has_news(connection, self._looked) else None

    async def _breathe(self, took_s: float) -> None:
        """A decision about many jobs takes a while: under a stream of wake-ups, half of the time is left to others."""
        if took_s > _SHORT_S:
            await asyncio.sleep(took_s)

    def _begin_anew(self) -> None:
        """Whatever has gone wrong with what is kept of the last decision, the next one owes nothing to it."""
        self._memory.forget()
        self._board = KeptBoard()

    async def _rest(self) -> None:
        """A failing database is not hammered; the poll brings the next try."""
        self._looked = None
        self._begin_anew()
        await asyncio.sleep(self._context.settings.poll_s)

    async def _resume_state(self) -> None:
        """On the first decision of a term, go on from what the last leader's policy remembered."""
        term = self._context.leader.term
        if self._term == term:
            return
        async with self._context.database.transaction() as connection:
            self._state = await last_state(connection, self._policy.name)
        self._term, self._stored_ms = term, None
        self._begin_anew()

    async def _write(
        self, trigger: str, seen: Observation, decided: Decided, config: PolicyConfig, started: float
    ) -> tuple[Plan, tuple[Dropped, ...]]:
        """The plan's effects, why others wait, and the tick, each under the leader's term; the plan as it was tried."""
        snapshot, now_ms = seen.snapshot, seen.snapshot.now_ms
        planned = await ranked_plan(self._context, snapshot, decided.plan)
        sound, refused = await sound_plan(self._context, snapshot, planned, config)
        plan = replace(sound, actions=tuple(due(sound.actions, seen.failures, now_ms))[:_MOST_ACTIONS])
        dropped = refused
        if plan.actions:
            layouts = await self._context.layouts.of(snapshot, plan.actions)
            dropped += await enact_apart(
                self._context, plan.actions, now_ms=now_ms, layouts=layouts, at_once=_ACTIONS_AT_ONCE
            )
        if decided.plan.actions:
            await note_outcomes(self._context, plan.actions, dropped, seen.failures)
        await want_images(self._context, plan.images)
        await in_batches(self._context, Chore.TELL, plan.waiting, set_wait_reasons, at_once=_WAITING_AT_ONCE)
        await self._lender.follow(snapshot, plan)
        gangs, closed = self._gangs, frozenset(self._gangs.kept_hosts) | self._vacated.closed
        await self._evictor.follow(snapshot, plan, self._lender.helped, gangs.lacking, closed)
        if decided.plan.actions or self._is_due(now_ms):
            stored = await self._records.keep(
                decided,
                self._state,
                plan.actions,
                policy=self._policy.name,
                trigger=trigger,
                at_ms=now_ms,
                dropped=len(dropped),
                duration_ms=round((time.monotonic() - started) * 1000),
            )
            if stored:
                self._stored_ms = now_ms
        return plan, dropped

    def _is_due(self, now_ms: int) -> bool:
        """Decisions that change nothing are stored once per tick interval."""
        return self._stored_ms is None or now_ms - self._stored_ms >= as_ms(self._context.settings.tick_s)
