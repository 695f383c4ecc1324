"""What `finetune --plan` says is what the same command submits: on every GPU the same layout and memory."""

from __future__ import annotations

from itertools import product

import pytest

from allpass.cli.finetune import plan_fields
from allpass.recipe.packing import Packed, pack
from allpass.wire.plan import PlanRequest
from app.core.layout import Place, lay_out
from app.core.memory.need import Stated, least_need
from app.core.model.offer import Offer
from app.services.plan_job import plan_job
from app.services.state_training import stated_training
from tests.core.samples import offer

GB = 1_000_000_000
ROWS = [{"prompt": f"a{number}", "completion": "b"} for number in range(40)]
MODELS = (
    "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-4B",
    "Qwen/Qwen2.5-7B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3", "google/gemma-2-9b-it", "microsoft/phi-4",
    "HuggingFaceTB/SmolLM2-135M", "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
)  # fmt: skip
KINDS = {"T4": 15, "L4": 24, "RTX4090": 25, "A100": 42, "H100": 85, "H200": 150}
SETTINGS = (
    {},
    {"micro_batch": 1, "checkpointing": True},
    {"micro_batch": 8, "sequence_length": 2048, "batch_size": 24},
)


def offers() -> list[Offer]:
    return [
        offer(f"{name}-{count}", gpu_type=name, gpu_count=count, gpu_memory_bytes=size * GB)
        for name, size in KINDS.items()
        for count in (1, 4)
    ]


def stated(packed: Packed) -> Stated:
    found = stated_training(packed.template)
    assert found is not None
    return found


@pytest.mark.parametrize(("model", "method"), [*product(MODELS, ("lora", "qlora", "full"))])
def test_every_line_of_the_plan_is_what_would_run_there(model: str, method: str) -> None:
    """Its layout is the run's, and it fits where the job is let through; the job takes one GPU of a machine."""
    for settings in SETTINGS:
        packed = pack({"model": model, "method": method, **settings}, ROWS)
        plan = plan_job(PlanRequest(**plan_fields(packed, None)), offers(), now_ms=0)
        need = least_need(stated(packed))
        assert len(plan.options) == len(offers())
        for option in plan.options:
            runs = lay_out(stated(packed), Place(option.gpu_type, option.gpu_memory_bytes, 1))
            assert option.training == runs.training
            assert (option.verdict == "fits") == runs.fits == (need.capacity_bytes <= option.gpu_memory_bytes)
        assert plan.one_gpu_bytes == need.capacity_bytes
        assert (plan.chosen is not None) == any(need.capacity_bytes <= size * GB for size in KINDS.values())


def test_where_it_fits_nowhere_a_smaller_micro_batch_is_named() -> None:
    """A plan that is free to choose would have taken it; this one says what the user has to set."""
    packed = pack({"model": "meta-llama/Llama-3.1-8B", "method": "qlora", "micro_batch": 16}, ROWS)
    small = [one for one in offers() if one.gpu_type == "RTX4090"]
    plan = plan_job(PlanRequest(**plan_fields(packed, None)), small, now_ms=0)
    assert plan.chosen is None
    told = {mend.changes: mend.message for mend in plan.mends}
    assert told["micro_batch=1",] == "take one sequence at a time (micro_batch 1)"
