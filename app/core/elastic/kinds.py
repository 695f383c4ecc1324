"""Whether people wait for a job (interactive) or not (batch): by its label, else by what is known of it.

A wrong answer costs little: an interactive job that runs long is demoted (`queues`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import TypeGuard

SHORT_S = 600.0  # the paper's bound for failed jobs of Philly that count as interactive (section 5)
FEW_STEPS = 100
ENOUGH_JOBS = 3
_LOOKED_AT = 4096  # characters of a command
# Somebody sits before these: what stops at breakpoints, and what runs cells.
_ATTENDED = frozenset(
    {
        *("pdb", "ipdb", "ipdb3", "pudb", "pudb3", "debugpy", "gdb", "cuda-gdb"),
        *("ipython", "ipython3", "jupyter", "jupyter-lab", "jupyter-notebook", "marimo", "code-server"),
    }
)
_BEFORE_PROGRAMS = frozenset(
    {"-m", "-c", "exec", "env", "sudo", "nohup", "time", "run", "then", "do", "&&", "||", "|", ";"}
)
_SETS = re.compile(r"[A-Za-z_]\w*=.*")  # a variable, for the program behind it


class ElasticKind(StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"


class KindSource(IntEnum):
    """What a kind is judged by: a higher number is stronger evidence."""

    NOTHING = 0
    FEW_STEPS = 1
    PAST = 2
    PREDICTED = 3
    PROGRESS = 4
    LABEL = 5
    ATTENDED = 6  # of jobs without a label


@dataclass(frozen=True, slots=True)
class KindEvidence:
    """What may be known of a job: how long jobs of its app usually run, and of how many that is known; its step count;
    the step time that was predicted from what it states, and the one that its first steps showed; and the program of
    its command before which somebody sits."""

    label: ElasticKind | None = None
    usual_s: float | None = None
    past_jobs: int = 0
    steps: int | None = None
    predicted_step_s: float | None = None
    step_s: float | None = None
    attended: str | None = None


@dataclass(frozen=True, slots=True)
class JudgedKind:
    kind: ElasticKind
    because: str
    source: KindSource


def judge_kind(known: KindEvidence) -> JudgedKind:
    """The label, else a debugger or notebook, else early progress, else a predicted step, else the app's past, else a
    small step count, else batch: the strongest evidence that there is. Figures that are not finite and positive are no
    evidence."""
    if known.label is not None:
        return JudgedKind(known.label, f"labelled {known.label}", KindSource.LABEL)
    if known.attended is not None:
        return JudgedKind(ElasticKind.INTERACTIVE, f"runs in {known.attended}", KindSource.ATTENDED)
    return _by_figures(known)


def _by_figures(known: KindEvidence) -> JudgedKind:
    steps = known.steps if known.steps is not None and known.steps > 0 else None
    if steps and _is_known(known.step_s):
        return _by_length(steps * known.step_s, f"{steps} steps of {known.step_s:.3g} s", KindSource.PROGRESS)
    if steps and _is_known(known.predicted_step_s):
        told = f"{steps} steps of {known.predicted_step_s:.3g} s, as predicted"
        return _by_length(steps * known.predicted_step_s, told, KindSource.PREDICTED)
    if known.past_jobs >= ENOUGH_JOBS and _is_known(known.usual_s):
        return _by_length(known.usual_s, f"what {known.past_jobs} earlier jobs of the app took", KindSource.PAST)
    if steps and steps <= FEW_STEPS:
        return JudgedKind(ElasticKind.INTERACTIVE, f"{steps} steps, at most {FEW_STEPS}", KindSource.FEW_STEPS)
    return JudgedKind(ElasticKind.BATCH, "nothing shows that it is short", KindSource.NOTHING)


def attended_program(words: Sequence[object]) -> str | None:
    """The debugger or notebook that a command runs, where a program's name may stand; None: none. Of a long command the
    beginning is looked at."""
    text = " ".join(one for one in words[:_LOOKED_AT] if isinstance(one, str))[:_LOOKED_AT]
    tokens = text.replace(";", " ; ").replace("(", " ; ").split()
    for before, token in pairwise([";", *tokens]):
        name = token.rpartition("/")[2]
        if name in _ATTENDED and (before in _BEFORE_PROGRAMS or _SETS.fullmatch(before)):
            return name
    return None


def _is_known(seconds: float | None) -> TypeGuard[float]:
    return seconds is not None and 0 < seconds < float("inf")


def _by_length(length_s: float, told: str, source: KindSource) -> JudgedKind:
    short = length_s <= SHORT_S
    kind = ElasticKind.INTERACTIVE if short else ElasticKind.BATCH
    words = f"{told}: {length_s:.0f} s, {'at most' if short else 'more than'} {SHORT_S:.0f} s"
    return JudgedKind(kind, words, source)
