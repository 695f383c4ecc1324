"""Decisions as they are kept: to be explained, and to be taken again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from app.control.context import ControlContext
from app.control.each import each
from app.core import codec
from app.core.deciding import Decided
from app.core.model.health import Chore
from app.core.model.plan import Action, Plan
from app.core.policy import PolicyState
from app.core.recording import Record, RecordedDecision, Recorder
from app.core.replaying import named_ids
from app.db.connection import Connection
from app.db.decisions.ticks import TickRow, add_tick


class Records:
    """Of one process's decisions. What cannot be kept of a decision never undoes it: that is told."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._recorder = Recorder()
        self._base_id: int | None = None

    async def keep(
        self,
        decided: Decided,
        state_before: PolicyState,
        enacted: Sequence[Action],
        *,
        policy: str,
        trigger: str,
        at_ms: int,
        dropped: int,
        duration_ms: int,
    ) -> bool:
        """Store one decision, under the leader's term; whether it is stored. `enacted`: what of it was tried."""

        async def store(connection: Connection, record: Record | None) -> int:
            row = TickRow(
                at_ms=at_ms,
                term=self._context.leader.term,
                trigger=trigger,
                policy=policy,
                policy_state=decided.state,
                plan=codec.encode(replace(decided.plan, actions=tuple(enacted), waiting=())),
                dropped=dropped,
                duration_ms=duration_ms,
                record=record,
                base_id=None if record is None or record.is_whole else self._base_id,
                named_ids=sorted(named_ids(enacted)),
            )
            return await add_tick(connection, row)

        record = await self._record(decided, state_before)
        stored = await each(self._context, Chore.TELL, [record], store, named=lambda _record: "a decision")
        if not stored:
            self._recorder.forget()
        elif record is not None and record.is_whole:
            self._base_id = stored[0]
        return bool(stored)

    async def _record(self, decided: Decided, state_before: PolicyState) -> Record | None:
        """Of what the policy was asked and what it answered, without what was added for those it was not asked of."""
        waiting = tuple(wait for wait in decided.plan.waiting if wait.job_id not in decided.left_out)
        plan: Plan = replace(decided.plan, waiting=waiting)
        made = RecordedDecision(decided.made_on, state_before, decided.made_under, plan)
        try:
            return await asyncio.to_thread(self._recorder.record, made)
        except Exception as error:
            self._context.health.failed(Chore.TELL, "what a decision saw", error)
            self._recorder.forget()
            return None
