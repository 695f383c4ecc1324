"""Take a recorded decision again: as it was, with another policy, or with other rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core import codec
from app.core.board import Board
from app.core.model.plan import Plan
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named
from app.core.policy import Policy, PolicyConfig, PolicyState
from app.core.recording import RecordedDecision, read_record
from app.core.replaying import Replay, replay
from app.db.decisions.recorded_ticks import RecordedTick
from app.errors import Conflict, InvalidInput
from app.settings import RULE_NAMES

_EARLIER = (
    "it was stored by an earlier release, without the configuration that it was decided with: that of now was taken"
)


@dataclass(frozen=True, slots=True)
class ReplayedTick:
    """`caveat`: why the decision could not be taken again on exactly what it was taken on; None: it was."""

    policy: str
    replay: Replay
    caveat: str | None


def replay_tick(
    tick: RecordedTick, config_now: PolicyConfig, *, policy: str | None, rules: Mapping[str, float]
) -> ReplayedTick:
    """Takes as long as the decision took: call it in a thread. `policy` None: the one that decided then.

    Raises InvalidInput for an unknown policy or rule, and Conflict for a tick that this release cannot read, or on
    which that policy cannot decide.
    """
    deciding = policy_named(policy or tick.policy)
    unknown = sorted(set(rules) - RULE_NAMES)
    if unknown:
        known = ", ".join(sorted(RULE_NAMES))
        raise InvalidInput(f"there is no rule {unknown[0]!r}; the rules are {known}", param=f"rules.{unknown[0]}")
    seen, caveat = _seen(tick, config_now)
    try:
        return ReplayedTick(deciding.name, replay(seen, deciding, _decide, rules), caveat)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Conflict(
            f"{deciding.name} cannot decide on what tick {tick.number} saw: {type(error).__name__}"
        ) from error


def _decide(policy: Policy, snapshot: Snapshot, state: PolicyState, config: PolicyConfig) -> Plan:
    return policy.decide(Board.of(snapshot), state, config)[0]


def _seen(tick: RecordedTick, config_now: PolicyConfig) -> tuple[RecordedDecision, str | None]:
    try:
        if tick.body is not None and tick.offers is not None:
            return read_record(tick.body, tick.base, tick.offers), None
        if tick.observed is None:
            raise Conflict(f"what tick {tick.number} saw was not kept")
        state = PolicyState() if tick.state_before is None else codec.decode(PolicyState, tick.state_before)
        observed, plan = codec.decode(Snapshot, tick.observed), codec.decode(Plan, tick.plan)
        return RecordedDecision(observed, state, config_now, plan), _EARLIER
    except InvalidInput as error:
        raise Conflict(
            f"tick {tick.number} was recorded by another release, which knew other things of the world: {error.message}"
        ) from error
