"""Which of a job's checkpoints stay. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class BestByMetric:
    """The checkpoint whose `metric` is lowest (`min`) or highest (`max`)."""

    metric: str
    mode: Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class Retention:
    """What a job asks for. Each rule keeps some; what none keeps may go.

    `every_steps`: the first checkpoint of each stretch of so many steps.
    """

    last: int
    every_steps: int | None = None
    best: BestByMetric | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete checkpoint. `is_wanted`: another job is to begin with it."""

    checkpoint_id: str
    epoch: int
    step: int
    metrics: Mapping[str, float]
    is_wanted: bool = False


def to_prune(saved: Sequence[Saved], rule: Retention) -> list[str]:
    """The ids of those that no rule keeps, oldest first. The newest, which the job would go on from, always stays."""
    ordered = sorted(saved, key=_age)
    kept = {one.checkpoint_id for one in ordered[-max(1, rule.last) :]}
    kept |= {one.checkpoint_id for one in ordered if one.is_wanted}
    if rule.every_steps is not None:
        first: dict[int, Saved] = {}
        for one in sorted(ordered, key=lambda one: one.step):
            first.setdefault(one.step // rule.every_steps, one)
        kept |= {one.checkpoint_id for one in first.values()}
    if rule.best is not None:
        kept |= _best(ordered, rule.best)
    return [one.checkpoint_id for one in ordered if one.checkpoint_id not in kept]


def _best(ordered: Sequence[Saved], best: BestByMetric) -> set[str]:
    """Of equals, the newest."""
    measured = [(one.metrics[best.metric], one) for one in ordered if best.metric in one.metrics]
    if not measured:
        return set()
    sign = -1 if best.mode == "min" else 1
    return {max(measured, key=lambda pair: (sign * pair[0], _age(pair[1])))[1].checkpoint_id}


def _age(one: Saved) -> tuple[int, int, str]:
    return one.epoch, one.step, one.checkpoint_id
