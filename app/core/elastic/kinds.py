"""Whether people wait for a job (interactive) or not (batch): by its label, else by what is known of it.

A wrong answer costs little: an interactive job that runs long is demoted (`queues`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SHORT_S = 600.0  # the paper's bound for failed jobs of Philly that count as interactive (section 5)
FEW_STEPS = 100
ENOUGH_RUNS = 3


class ElasticKind(StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class KindEvidence:
    """What may be known of a job: durations of ended runs of the same app, its step count, and the mean step time that
    its first steps showed."""

    label: ElasticKind | None = None
    past_s: tuple[float, ...] = ()
    steps: int | None = None
    step_s: float | None = None


@dataclass(frozen=True, slots=True)
class JudgedKind:
    kind: ElasticKind
    because: str


def judge_kind(known: KindEvidence) -> JudgedKind:
    """The label, else early progress, else the app's past, else a small step count, else batch: the strongest evidence
    that there is. Figures that are not finite and positive are no evidence."""
    if known.label is not None:
        return JudgedKind(known.label, f"labelled {known.label}")
    steps = known.steps if known.steps is not None and known.steps > 0 else None
    if steps and known.step_s is not None and 0 < known.step_s < float("inf"):
        return _by_length(steps * known.step_s, f"{steps} steps of {known.step_s:.3g} s")
    past = sorted(one for one in known.past_s if 0 < one < float("inf"))
    if len(past) >= ENOUGH_RUNS:
        return _by_length(past[len(past) // 2], f"median of {len(past)} earlier runs of the app")
    if steps and steps <= FEW_STEPS:
        return JudgedKind(ElasticKind.INTERACTIVE, f"{steps} steps, at most {FEW_STEPS}")
    return JudgedKind(ElasticKind.BATCH, "nothing shows that it is short")


def _by_length(length_s: float, source: str) -> JudgedKind:
    short = length_s <= SHORT_S
    kind = ElasticKind.INTERACTIVE if short else ElasticKind.BATCH
    return JudgedKind(kind, f"{source}: {length_s:.0f} s, {'at most' if short else 'more than'} {SHORT_S:.0f} s")
