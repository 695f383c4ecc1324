"""Estimates are corrected by what runs measured: a little by a few runs, toward the truth by many."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.memory import MODELS, Estimate, Training, estimate
from app.core.memory.calibration import (
    ENOUGH,
    Calibration,
    Calibrations,
    Observed,
    corrected,
    kind_of,
    learned,
    short_version,
)

MODEL = MODELS["llama-3.2-1b"]
LORA = Training("lora", 4, 512)
FOUND = estimate(MODEL, LORA)
GIB = 1 << 30


def measured(ratio: float, *, wasted: float = 0.05, context: int = 400 << 20) -> Observed:
    allocated = round(FOUND.allocated.expected * ratio)
    reserved = round(allocated * (1 + wasted))
    return Observed(allocated, reserved, reserved + context)


def after(*runs: Observed, predicted: Estimate = FOUND) -> Calibration | None:
    known: Calibration | None = None
    for run in runs:
        known = learned(known, predicted, run) or known
    return known


def test_without_a_run_nothing_changes() -> None:
    """The model's own estimate, to the byte."""
    assert corrected(FOUND, None) == FOUND
    assert corrected(FOUND, Calibration(0, 1.0, 1.0, 10**9)) == FOUND


@settings(max_examples=40, deadline=None)
@given(st.floats(0.6, 1.8), st.integers(1, 30))
def test_more_runs_bring_the_estimate_closer(ratio: float, count: int) -> None:
    """Every further equal run moves it toward what was measured, never beyond."""
    truth = measured(ratio).allocated
    assert truth is not None
    few = corrected(FOUND, after(*[measured(ratio)] * count)).allocated.expected
    more = corrected(FOUND, after(*[measured(ratio)] * (count + 1))).allocated.expected
    assert abs(more - truth) <= abs(few - truth) + 1
    assert min(truth, FOUND.allocated.expected) - 1 <= few <= max(truth, FOUND.allocated.expected) + 1


def test_one_run_counts_a_quarter() -> None:
    """Three runs' worth of trust are in the model: one that measured 20 % more moves it by about 5 %."""
    once = corrected(FOUND, after(measured(1.2)))
    assert once.allocated.expected / FOUND.allocated.expected == pytest.approx(1.2**0.25, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 3), st.floats(0, 2), st.integers(1, 20))
def test_the_three_numbers_stay_in_order(ratio: float, wasted: float, count: int) -> None:
    """Whatever was measured: low, expected and high, and allocated within reserved within process."""
    known = after(*[measured(ratio, wasted=wasted)] * count)
    told = corrected(FOUND, known)
    for one in (told.allocated, told.reserved, told.process):
        assert one.low <= one.expected <= one.high
    assert told.allocated.expected <= told.reserved.expected < told.process.expected
    assert known is not None
    assert abs(known.log_ratio) <= 0.6932


@settings(max_examples=40, deadline=None)
@given(st.floats(0.5, 2), st.integers(1, 12))
def test_few_runs_let_nothing_fit(ratio: float, count: int) -> None:
    """What is needed to be sure falls below the model's own number only after enough runs, and rises from the first."""
    told = corrected(FOUND, after(*[measured(ratio, wasted=0.1, context=500 << 20)] * count))
    if ratio > 1.01:
        assert told.needed > FOUND.needed
    elif ratio < 0.99:
        assert told.needed == FOUND.needed if count < ENOUGH else told.needed < FOUND.needed


def test_running_out_of_memory_only_ever_raises() -> None:
    """It says that more was needed than there was: a surprise moves the estimate up, an expected end says nothing."""
    small = Observed(out_of_memory_bytes=round(FOUND.process.expected * 1.5))
    assert corrected(FOUND, after(small)).process.expected > FOUND.process.expected
    assert learned(None, FOUND, Observed(out_of_memory_bytes=FOUND.process.expected // 2)) is None
    assert learned(None, FOUND, Observed()) is None


def test_kinds_are_told_apart_by_what_matters() -> None:
    """Patch releases are one kind; another method, kernel or GPU is not, and the newest versions answer."""
    versions = {"torch": "2.3.1+cu121", "peft": "0.13.2"}
    kind = kind_of(MODEL, LORA, "A100 SXM4", versions)
    assert (kind.gpu_type, kind.versions, kind.kernel) == ("a100sxm4", "peft 0.13, torch 2.3", "flash/full")
    assert kind == kind_of(MODEL, LORA, "a100-sxm4", versions | {"torch": "2.3.0"})
    old, new = Calibration(9, 0.5, 0.1, 0), Calibration(1, 0.1, 0.1, 0)
    known = Calibrations([(kind, old), (replace(kind, versions="torch 2.5"), new)])
    assert known.of(MODEL, LORA, "A100-SXM4") == new
    assert known.of(MODEL, replace(LORA, attention="eager"), "A100-SXM4") is None
    assert known.of(MODEL, LORA, "H100") is None
    assert short_version("4.46") == "4.46"
