"""Stages of ZeRO hold what DeepSpeed holds: a float32 copy of what trains, with its states, beside the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.memory import MODELS, Training, estimate, peak_of, verdict
from app.core.memory.fit import FRAGMENTATION_HIGH, FRAGMENTATION_MEDIAN
from app.core.memory.parameters import parameters_of
from app.errors import InvalidInput

LLAMA = MODELS["llama-3.2-1b"]
COUNT = parameters_of(LLAMA).total
FULL = Training(method="full", batch=1, sequence=128, optimizer="adamw", checkpointing=True, sharding="zero2", gpus=2)


def test_stage_two_by_the_byte() -> None:
    """Weights of 2 bytes whole; copy and states of 12, gradients of 2, and 6 more for the step, split over the GPUs."""
    for gpus in (1, 2, 4):
        peak = peak_of(LLAMA, replace(FULL, gpus=gpus))
        assert peak.resident / COUNT == pytest.approx(2 + 12 / gpus, abs=0.02)
        assert peak.optimizer / COUNT == pytest.approx(2 + (12 + 2 + 6) / gpus, abs=0.02)


def test_stage_three_splits_the_weights_and_steps_by_groups() -> None:
    """A step adds float32 gradients of no more than a thousand million values."""
    large = MODELS["llama-3-8b"]
    peak = peak_of(large, replace(FULL, sharding="zero3"))
    assert peak.resident / parameters_of(large).total == pytest.approx(7, abs=0.02)
    gradients = 2 * parameters_of(large).total / 2
    assert peak.optimizer == pytest.approx(peak.resident + gradients + 4e9, rel=0.001)


def test_gradients_add_up_beside_new_ones() -> None:
    """While sequences accumulate, the sum so far waits beside the gradients of this micro-batch."""
    once, often = peak_of(LLAMA, FULL), peak_of(LLAMA, replace(FULL, accumulation=8))
    assert often.backward - once.backward == pytest.approx(2 * COUNT / 2, rel=0.01)


def test_adapters_are_cast_with_the_module() -> None:
    """An adapter takes 2 bytes a value under DeepSpeed, and 12 in its copy and states; 4 and 8 without."""
    lora = Training(method="lora", batch=1, sequence=128, rank=64, optimizer="adamw_fused")
    small = replace(lora, rank=1)
    plain = peak_of(LLAMA, lora).resident - peak_of(LLAMA, small).resident
    under = [replace(each, sharding="zero2") for each in (lora, small)]
    assert peak_of(LLAMA, under[0]).resident - peak_of(LLAMA, under[1]).resident == pytest.approx(plain * 14 / 12)


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_one_gpu_splits_nothing_by_itself(sharding: str) -> None:
    """DeepSpeed runs on one GPU too; the others need two."""
    assert peak_of(LLAMA, replace(FULL, gpus=1)).resident > 0
    with pytest.raises(InvalidInput, match="sharding"):
        replace(FULL, gpus=1, sharding=sharding)  # type: ignore[arg-type]  # a word from a table


def test_fsdp_is_given_more_room() -> None:
    """Gathered weights fragment memory: the number that decides `fits` assumes the unlucky case."""
    shared = replace(FULL, sharding="fsdp")
    found = estimate(LLAMA, shared)
    more = (FRAGMENTATION_HIGH - FRAGMENTATION_MEDIAN) * found.allocated.expected
    usual = found.allocated.high + found.process.expected - found.allocated.expected
    assert found.needed == pytest.approx(usual + more, abs=2)
    assert verdict(found, found.needed) == "fits"
    assert verdict(found, found.needed - 1) == "tight"
