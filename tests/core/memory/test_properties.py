"""What must hold for every model and configuration: more of anything never needs less memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.memory import MODELS, PROFILES, Architecture, Training, estimate, peak_of
from app.core.memory.semantics import Semantics

SAMPLED = ("llama-3-8b", "qwen2.5-0.5b", "gemma-2-2b", "phi-3-mini", "gpt2", "bert-base", "mixtral-8x7b", "pythia-1b")
models = st.sampled_from(SAMPLED).map(MODELS.__getitem__)
profiles = st.sampled_from(sorted(PROFILES)).map(PROFILES.__getitem__)


@st.composite
def trainings(draw: st.DrawFn, **fixed: Any) -> Training:
    """A configuration that may be, of sizes that fit every model in the sample."""
    method = draw(st.sampled_from(["full", "lora", "qlora", "norm_tuning"]))
    quantised = method == "qlora"
    amp = [] if quantised else ["amp_bf16", "fp32"]
    precision = draw(st.sampled_from(["bf16", *amp]))
    values: dict[str, Any] = {
        "method": method,
        "precision": precision,
        "autocast": quantised and draw(st.booleans()),
        "batch": draw(st.integers(1, 16)),
        "sequence": draw(st.integers(16, 512)),
        "optimizer": draw(st.sampled_from(["adamw_fused", "adamw_foreach", "adamw_8bit", "sgd"])),
        "checkpointing": draw(st.booleans()),
        "attention": draw(st.sampled_from(["flash", "efficient", "eager"])),
        "rank": draw(st.integers(1, 128)),
        "quantisation": draw(st.sampled_from(["nf4", "nf4_dq"])) if quantised else "none",
    }
    return Training(**(values | fixed))


def _allocated(model: Architecture, training: Training, semantics: Semantics) -> int:
    return peak_of(model, training, semantics).allocated


@settings(max_examples=40, deadline=None)
@given(models, trainings(), profiles, st.sampled_from(["batch", "sequence", "rank"]), st.integers(1, 64))
def test_more_never_needs_less(
    model: Architecture, training: Training, profile: Semantics, what: str, more: int
) -> None:
    """A larger batch, a longer sequence or a higher rank never needs less memory."""
    grown = getattr(training, what) + more
    grown = min(grown, 512) if what == "sequence" else grown
    larger = replace(training, **{what: max(grown, getattr(training, what))})
    assert _allocated(model, larger, profile) >= _allocated(model, training, profile)


@settings(max_examples=40, deadline=None)
@given(models, trainings(checkpointing=False), profiles)
def test_checkpointing_never_needs_more(model: Architecture, training: Training, profile: Semantics) -> None:
    """Keeping only the inputs of layers never needs more than keeping everything, in a model deep enough to gain.

    Where the embedding is frozen, checkpointing alone makes the first layer hand a gradient down: that one layer.
    """
    checkpointed = replace(training, checkpointing=True)
    deep = model.with_layers(max(model.layers, 24))
    layer = 16 * training.batch * training.sequence * (model.hidden + model.intermediate)
    first = 0 if training.method == "full" else layer
    assert _allocated(deep, checkpointed, profile) <= _allocated(deep, training, profile) + first


@settings(max_examples=20, deadline=None)
@given(models, trainings(), profiles, st.sampled_from([1, 2, 3, 5, 11]), st.integers(1, 20))
def test_deeper_never_needs_less(
    model: Architecture, training: Training, profile: Semantics, layers: int, more: int
) -> None:
    """A model with more layers never needs less, whether or not its layers are all run on the tape."""
    small, large = model.with_layers(layers), model.with_layers(layers + more)
    assert _allocated(small, training, profile) <= _allocated(large, training, profile)


@settings(max_examples=40, deadline=None)
@given(models, trainings(method="full", quantisation="none", autocast=False), profiles)
def test_adapters_never_need_more_than_full_training(
    model: Architecture, training: Training, profile: Semantics
) -> None:
    """Resident memory of LoRA is below that of full training as soon as an optimizer keeps states."""
    kept = replace(training, optimizer="adamw_fused")
    assert peak_of(model, replace(kept, method="lora"), profile).resident < peak_of(model, kept, profile).resident


@settings(max_examples=40, deadline=None)
@given(models, trainings(), profiles)
def test_the_numbers_keep_their_order(model: Architecture, training: Training, profile: Semantics) -> None:
    """Resident is within every phase; allocated, reserved and process each contain the one before."""
    found = estimate(model, training, profile)
    peak = found.peak
    assert peak.resident <= min(peak.forward, peak.backward, peak.optimizer)
    assert peak.allocated == getattr(peak, peak.phase)
    assert found.allocated.expected < found.reserved.expected < found.process.expected
    for each in (found.allocated, found.reserved, found.process):
        assert each.low <= each.expected <= each.high


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SAMPLED[:4]).map(MODELS.__getitem__), trainings(), st.sampled_from([2, 4, 8]))
def test_sharding_more_never_needs_more(model: Architecture, training: Training, gpus: int) -> None:
    """Each stage of ZeRO holds no more than the one before, and more GPUs never need more memory on each."""
    stages = [replace(training, gpus=gpus, sharding=stage) for stage in ("zero1", "zero2")]
    peaks = [peak_of(model, each).optimizer for each in stages]
    assert peaks == sorted(peaks, reverse=True)
    for stage in ("zero1", "zero2", "zero3", "fsdp"):
        few = replace(training, gpus=gpus, sharding=stage)  # type: ignore[arg-type]  # a word from a table
        assert peak_of(model, replace(few, gpus=2 * gpus)).resident <= peak_of(model, few).resident


@pytest.mark.parametrize("name", SAMPLED)
def test_three_layers_stand_for_all(name: str) -> None:
    """The peak grows by the same number of bytes with every layer beyond the third: nothing else depends on depth."""
    training = Training(method="lora", batch=4, sequence=256)
    peaks = [peak_of(MODELS[name].with_layers(layers), training).forward for layers in range(4, 9)]
    steps = {later - earlier for earlier, later in pairwise(peaks)}
    assert max(steps) - min(steps) <= 2, "rounding to whole bytes"
