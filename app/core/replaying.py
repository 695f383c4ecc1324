"""A recorded decision taken again, and what comes out differently."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.core import codec
from app.core.model.plan import Action, Plan
from app.core.model.snapshot import Snapshot
from app.core.policy import AllpassRules, Policy, PolicyConfig, PolicyState
from app.core.recording import RecordedDecision

Decide = Callable[[Policy, Snapshot, PolicyState, PolicyConfig], Plan]
# What tells actions apart; the words of a reason and the row versions do not.
_WORDS = frozenset({"reason", "versions"})
_NAMES = ("job_id", "for_job_id", "companion_id", "node_id")


@dataclass(frozen=True, slots=True)
class Replay:
    """`then` was planned, `now` is; actions in both are the same but for their words. `waits`: jobs that are told
    something else why they wait, or wait only then or now: by job, the reason then and now (None: no wait)."""

    both: tuple[Action, ...]
    only_then: tuple[Action, ...]
    only_now: tuple[Action, ...]
    waits: Mapping[str, tuple[str | None, str | None]]
    unchanged_waits: int
    signals_then: Mapping[str, float]
    signals_now: Mapping[str, float]

    @property
    def is_same(self) -> bool:
        return not self.only_then and not self.only_now and not self.waits


def replay(seen: RecordedDecision, policy: Policy, decide: Decide, rules: Mapping[str, float] | None = None) -> Replay:
    """Decide with this policy on what was seen then, with these rules of `allpass` changed.

    Everything else is as it was: the state of the policy before that decision, its configuration, the offers. A policy
    that remembers nothing of the one that decided begins anew.
    """
    config = seen.config if not rules else replace(seen.config, rules=changed_rules(seen.config.rules, rules))
    return compared(seen.plan, decide(policy, seen.snapshot, seen.state, config))


def changed_rules(rules: AllpassRules, changes: Mapping[str, float]) -> AllpassRules:
    """The rules with other figures; those that are whole numbers are rounded."""
    whole = {name: round(value) if isinstance(getattr(rules, name), int) else value for name, value in changes.items()}
    return replace(rules, **whole)  # type: ignore[arg-type]  # each has the kind of the one that it replaces


def compared(then: Plan, now: Plan) -> Replay:
    """What two plans on the same snapshot have in common, in the order of each."""
    keys_then, keys_now = {_key(action) for action in then.actions}, {_key(action) for action in now.actions}
    waits_then = {wait.job_id: wait.reason for wait in then.waiting}
    waits_now = {wait.job_id: wait.reason for wait in now.waiting}
    waits = {
        job_id: (waits_then.get(job_id), waits_now.get(job_id))
        for job_id in sorted({*waits_then, *waits_now})
        if waits_then.get(job_id) != waits_now.get(job_id)
    }
    return Replay(
        both=tuple(action for action in now.actions if _key(action) in keys_then),
        only_then=tuple(action for action in then.actions if _key(action) not in keys_now),
        only_now=tuple(action for action in now.actions if _key(action) not in keys_then),
        waits=waits,
        unchanged_waits=len(waits_then.keys() & waits_now.keys()) - sum(None not in pair for pair in waits.values()),
        signals_then=dict(then.signals),
        signals_now=dict(now.signals),
    )


def concerns(action: Action, row_ids: Collection[str]) -> bool:
    """Whether it is about one of these jobs or nodes."""
    return any(getattr(action, name, None) in row_ids for name in _NAMES)


def named_ids(actions: Collection[Any]) -> set[str]:
    """The jobs and nodes that actions are about."""
    named = (getattr(action, name, None) for action in actions for name in _NAMES)
    return {row_id for row_id in named if row_id is not None}


def _key(action: Action) -> str:
    return str({name: value for name, value in codec.encode(action).items() if name not in _WORDS})
