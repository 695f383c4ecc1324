"""The last look at a plan before it is enacted: what would break an invariant is refused, whatever the policy."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from app.control.context import ControlContext
from app.control.dropping import Dropped
from app.core.judging import Refusal, sound_part
from app.core.model.health import Chore, PartKind
from app.core.model.plan import Plan
from app.core.model.snapshot import Snapshot
from app.core.policy import PolicyConfig
from app.errors import InvariantBroken

log = logging.getLogger(__name__)


async def sound_plan(
    context: ControlContext, snapshot: Snapshot, plan: Plan, config: PolicyConfig
) -> tuple[Plan, tuple[Dropped, ...]]:
    """The plan without what must not be enacted on this snapshot, and that, as actions that failed.

    A judge that fails itself stops nobody: each action is still checked against the rows as it is enacted.
    """
    if not plan.actions:
        return plan, ()
    try:
        verdict = await asyncio.to_thread(sound_part, snapshot, plan, config)
    except Exception as error:
        context.health.failed(Chore.DECIDE, "the judge of plans", error)
        return plan, ()
    if verdict.refusals:
        broken = Counter(breach.invariant for refusal in verdict.refusals for breach in refusal.breaches)
        await context.health.count(PartKind.INVARIANT, broken)
    return verdict.plan, tuple(_refused(refusal) for refusal in verdict.refusals)


def _refused(refusal: Refusal) -> Dropped:
    log.error("an action was refused: %s: %s", refusal.action.kind, refusal.why)
    return Dropped(refusal.action, refusal.why, InvariantBroken(refusal.why))
