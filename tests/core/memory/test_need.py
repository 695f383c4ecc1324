"""The smallest GPU that a stated training needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.memory import MODELS, Training, estimate, verdict
from app.core.memory.catalogue import known_name
from app.core.memory.need import Stated, changes_that_help, layouts_of, least_need, smallest_known

LORA = Stated("llama-3-8b", MODELS["llama-3-8b"], Training("lora", 1, 2048), batch=16, gpus=1)


def test_the_need_is_the_least_capacity_that_fits() -> None:
    """One byte less does not fit, and no other layout needs less."""
    need = least_need(LORA)
    found = estimate(LORA.model, need.training)
    assert verdict(found, need.capacity_bytes) == "fits"
    assert verdict(found, need.capacity_bytes - 1) != "fits"
    for layout in layouts_of(LORA):
        assert verdict(estimate(LORA.model, layout), need.capacity_bytes - 1) != "fits"


def test_what_is_stated_is_kept() -> None:
    """A micro-batch and a refusal to recompute cost memory, and are not argued with."""
    free = least_need(LORA)
    fixed = least_need(replace(LORA, micro_batch=4, checkpointing=False))
    assert (free.training.batch, free.training.checkpointing) == (1, True)
    assert (fixed.training.batch, fixed.training.accumulation, fixed.training.checkpointing) == (4, 4, False)
    assert fixed.capacity_bytes > free.capacity_bytes


def test_several_gpus_share_the_states() -> None:
    """Full training on four GPUs needs less on each than on one."""
    full = replace(LORA, training=Training("full", 1, 2048))
    alone, four = least_need(full), least_need(replace(full, gpus=4))
    assert four.training.sharding == "fsdp"
    assert four.capacity_bytes < alone.capacity_bytes / 2


def test_an_optimizer_inside_the_way_back_takes_the_batch_at_once() -> None:
    """It cannot accumulate: all of a replica's sequences are there together."""
    need = least_need(replace(LORA, training=Training("full", 1, 512, optimizer="in_backward_adamw")))
    assert (need.training.batch, need.training.accumulation) == (16, 1)


def test_changes_that_help_do_help() -> None:
    """Each named change makes the smaller GPU do."""
    full = replace(LORA, training=Training("full", 1, 2048))
    need = least_need(full)
    assert "method=lora" in changes_that_help(full, need, 42_900_000_000)
    assert least_need(LORA).capacity_bytes <= 42_900_000_000
    assert (smallest_known(40_000_000_000), smallest_known(10**12)) == ("L40S", None)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("bert-base-uncased", "bert-base"),
        ("GPT2", "gpt2"),
        ("tiny-llama-bytes", None),
    ],
)
def test_models_are_known_by_their_name_on_the_hub_too(name: str, known: str | None) -> None:
    """The publisher, the case and what was trained on top do not change the shape."""
    assert known_name(name) == known
