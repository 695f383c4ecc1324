"""A fine-tuning on several GPUs has a whole copy on each: in the plan, at admission, and as it is laid out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.cli.finetune import plan_fields
from allpass.recipe.packing import Packed, pack
from allpass.templates import load_template
from allpass.wire.plan import PlanRequest
from app.core.layout import GpuSet, StepCut, lay_out_alone
from app.core.memory import Training, model_named
from app.core.memory.host import PROCESS_BYTES, host_bytes
from app.core.memory.need import Stated, layouts_of, least_need
from app.core.model.offer import Offer
from app.services.jobs.plan_job import plan_job
from app.services.jobs.state_training import stated_training
from tests.core.samples import offer

GB = 1_000_000_000
ROWS = [{"prompt": f"a{number}", "completion": "b"} for number in range(40)]
KINDS = {"L4": 24, "A100": 42, "H200": 150}
LORA = Training(method="lora", batch=1, sequence=1024)
SMALL = Stated("llama-3.2-1b", model_named("llama-3.2-1b"), LORA, 16, 4, whole=True)


def packed(count: int, **settings: object) -> Packed:
    command = {"model": "meta-llama/Llama-3.2-1B", **settings}
    return pack(command, ROWS, template=load_template({"gpu": {"count": count}}))


def offers() -> list[Offer]:
    return [
        offer(f"{name}-{count}", gpu_type=name, gpu_count=count, gpu_memory_bytes=size * GB)
        for name, size in KINDS.items()
        for count in (1, 4)
    ]


@given(st.integers(1, 64), st.integers(1, 8), st.sampled_from([6, 16, 24, 80]))
def test_every_gpu_has_a_part_of_each_step(batch: int, gpus: int, memory_gb: int) -> None:
    """If a step has so many sequences; and no GPU more than its turns. Nothing is spread."""
    stated = replace(SMALL, batch=batch, gpus=gpus)
    found = lay_out_alone(stated, GpuSet("A100", memory_gb * GB, 8))
    told = found.as_json()
    parts = -(-batch // told["micro_batch"])
    assert parts >= min(gpus, batch)
    assert (told["gpus"], told["data_parallel"], told["accumulation"]) == (gpus, gpus, -(-parts // gpus))
    assert told["sharding"] == ("none" if gpus == 1 else "ddp")


def test_a_cut_that_was_begun_with_is_kept_on_more_gpus() -> None:
    """Even where some have less to do then: other sums would be other bits."""
    place = GpuSet("A100", 80 * GB, 4)
    found = lay_out_alone(SMALL, place, begun=StepCut(8, checkpointing=False)).training
    assert (found.batch, found.accumulation, found.gpus, found.sharding) == (8, 1, 4, "ddp")


def test_what_only_fits_when_it_is_spread_is_not_let_through() -> None:
    """A whole fine-tuning of an 8B model would fit on eight A100 if it were spread, and does not as it is."""
    training = replace(LORA, method="full", precision="amp_bf16")
    spread = Stated("llama-3.1-8b", model_named("llama-3.1-8b"), training, 16, 8)
    whole = replace(spread, whole=True)
    assert {layout.sharding for layout in layouts_of(whole)} == {"ddp"}
    assert least_need(spread).capacity_bytes < 85 * GB < least_need(whole).capacity_bytes


@pytest.mark.parametrize("settings", [{}, {"micro_batch": 2}, {"method": "full"}, {"batch_size": 6}])
def test_the_plan_of_several_gpus_is_what_runs_there(settings: dict[str, object]) -> None:
    """On machines that have so many; their layout is the run's, and they fit where the job is let through."""
    job = packed(4, **settings)
    stated = stated_training(job.template)
    assert stated is not None
    plan = plan_job(PlanRequest(**plan_fields(job, None)), offers(), now_ms=0)
    need = least_need(replace(stated, whole=True))
    assert plan.one_gpu_bytes == need.capacity_bytes
    assert [option.gpu_count for option in plan.options] == [4, 4, 4]
    for option in plan.options:
        runs = lay_out_alone(stated, GpuSet(option.gpu_type, option.gpu_memory_bytes, 4))
        assert (option.training, option.estimated) == (runs.training, runs.estimated)
        assert (option.verdict == "fits") == runs.fits == (need.capacity_bytes <= option.gpu_memory_bytes)


def test_no_machine_has_so_many() -> None:
    """It says so, and what each GPU would have to have."""
    found = plan_job(PlanRequest(**plan_fields(packed(8), None)), offers(), now_ms=0)
    assert found.reason.startswith("no provider offers a machine with 8 GPUs now; 8 GPUs are enough from ")


def test_each_process_takes_memory_of_the_machine() -> None:
    """All of them load; one saves."""
    one, four = (host_bytes(SMALL.model, LORA, processes=count) for count in (1, 4))
    assert four - one >= 3 * PROCESS_BYTES
