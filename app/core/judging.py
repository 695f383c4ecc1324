"""A plan without the actions that must not be enacted, whatever policy asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.core.invariants import Breach, judge
from app.core.model.plan import Action, Plan
from app.core.model.snapshot import Snapshot
from app.core.policy import PolicyConfig


@dataclass(frozen=True, slots=True)
class Refusal:
    """An action that was left out of a plan, and what enacting it would have broken."""

    action: Action
    breaches: tuple[Breach, ...]

    @property
    def why(self) -> str:
        """In words."""
        return "; ".join(breach.sentence for breach in self.breaches)


@dataclass(frozen=True, slots=True)
class JudgedPlan:
    """`plan` breaks nothing: what was refused is not in it. `forgotten`: jobs that it neither places nor tells why not;
    they are told of, and nothing is left out for it."""

    plan: Plan
    refusals: tuple[Refusal, ...] = ()
    forgotten: tuple[Breach, ...] = ()


def sound_part(snapshot: Snapshot, plan: Plan, config: PolicyConfig) -> JudgedPlan:
    """The largest part of the plan, from its beginning on, that breaks no invariant on this snapshot.

    An action is left out for a breach that is its own; where several together break a limit, those go that come last.
    What is left is judged again, since one action may have been allowed by another (a release, by the move that empties
    its node): each round leaves at least one out, and of a sound plan there is one round.
    """
    refusals: list[Refusal] = []
    while True:
        breaches = judge(snapshot, plan, config)
        refused = _by_action(breaches)
        if not refused:
            return JudgedPlan(plan, tuple(refusals), tuple(breaches) if not refusals else ())
        refusals += [Refusal(plan.actions[place], tuple(own)) for place, own in sorted(refused.items())]
        kept = tuple(action for place, action in enumerate(plan.actions) if place not in refused)
        plan = replace(plan, actions=kept)


def _by_action(breaches: Sequence[Breach]) -> dict[int, list[Breach]]:
    refused: dict[int, list[Breach]] = {}
    for breach in breaches:
        for place in breach.actions:
            refused.setdefault(place, []).append(breach)
    return refused
