"""What `finetune --plan` says is what the same command submits: on every GPU the same layout and memory, whatever the
project's runs have taught."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from allpass.cli.finetune import plan_fields
from allpass.recipe.packing import Packed, pack
from allpass.wire.plan import PlanRequest
from app.core.layout import GpuSet, Layout, Learned
from app.core.memory.calibration import Calibration, Calibrations, kind_of
from app.core.memory.need import Stated, least_need
from app.core.model.offer import Offer
from app.core.options import Option
from app.core.throughput import Throughput, key_of
from app.services.jobs.plan_job import plan_job
from app.services.jobs.state_training import stated_training
from app.services.runs.lay_out_run import _Asked, _lay_out
from tests.core.samples import offer

GB = 1_000_000_000
ROWS = [{"prompt": f"a{number}", "completion": "b"} for number in range(40)]
MODELS = (
    "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-4B",
    "Qwen/Qwen2.5-7B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3", "google/gemma-2-9b-it", "microsoft/phi-4",
    "HuggingFaceTB/SmolLM2-135M", "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
)  # fmt: skip
KINDS = {"T4": 15, "L4": 24, "RTX4090": 25, "A100": 42, "H100": 85, "H200": 150}
SETTINGS: tuple[dict[str, object], ...] = (
    {},
    {"micro_batch": 1, "checkpointing": True},
    {"micro_batch": 8, "sequence_length": 2048, "batch_size": 24},
    {"micro_batch": 3, "batch_size": 16},
    {"checkpointing": True, "batch_size": 60},
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


def run_on(option: Option, packed: Packed, learned: Learned | None = None) -> Layout:
    """As the control loop lays the job's run out."""
    place = GpuSet(option.gpu_type, option.gpu_memory_bytes, option.gpu_count)
    found = _lay_out(_Asked(stated(packed), place, by_recipe=True, begun=None), learned or Learned())
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
            runs = run_on(option, packed)
            assert (option.training, option.estimated) == (runs.training, runs.estimated)
            assert (option.verdict == "fits") == runs.fits == (need.capacity_bytes <= option.gpu_memory_bytes)
        assert plan.one_gpu_bytes == need.capacity_bytes
        assert (plan.chosen is not None) == any(need.capacity_bytes <= size * GB for size in KINDS.values())


def test_a_smaller_gpu_is_not_refused_for_what_nobody_asked_for() -> None:
    """Of an 8B model by QLoRA four rows at once without recomputing take a GPU that costs twice as much: those who ask
    for them get it, and others the cheaper one."""
    command = {"model": "meta-llama/Llama-3.1-8B", "method": "qlora", "sequence_length": 2048}
    free, fixed = (
        least_need(stated(pack({**command, **more}, ROWS))).capacity_bytes
        for more in ({}, {"micro_batch": 4, "checkpointing": False})
    )
    assert free < KINDS["T4"] * GB < KINDS["L4"] * GB < fixed


@pytest.mark.parametrize("method", ["lora", "full"])
def test_what_runs_have_taught_counts_for_both(method: str) -> None:
    """Memory that was underrated makes both more sparing; steps that were measured make both take another layout."""
    packed = pack({"model": "meta-llama/Llama-3.2-1B", "method": method}, ROWS)
    asked, job = PlanRequest(**plan_fields(packed, None)), stated(packed)
    before = {option.gpu_type: option for option in plan_job(asked, offers(), now_ms=0).options}
    kinds = {name: kind_of(job.model, job.training, name, {}) for name in KINDS}
    calibrations = Calibrations((kind, Calibration(50, 0.7, 0.2, GB)) for kind in kinds.values())
    roomy = before["H200"].training
    slow = key_of(job.name, roomy, "H200", job.model.layers)
    throughput = Throughput()
    throughput.learn(slow, 10**7, None)
    changed = 0
    for option in plan_job(asked, offers(), throughput, calibrations, now_ms=0).options:
        learned = Learned(calibrations.of(job.model, job.training, option.gpu_type), throughput)
        runs = run_on(option, packed, learned)
        assert (option.training, option.estimated) == (runs.training, runs.estimated)
        changed += runs.training != before[option.gpu_type].training
        assert option.gpu_type != "H200" or runs.training != roomy
    assert changed > 2


def test_a_job_is_let_through_by_what_each_gpu_computes_in() -> None:
    """Under autocast some models need more in fp16 than in bf16; the plan's verdict is the run's on either."""
    config = {
        "model_type": "gpt2",
        "n_embd": 1600,
        "n_layer": 48,
        "n_head": 25,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    packed = pack({"model": "somebody/gpt", "micro_batch": 8, "sequence_length": 1024}, ROWS, config=config)
    assert packed.template.training.precision_by_gpu is True
    fields = plan_fields(packed, None)
    assert fields["precision_by_gpu"] is True
    found = {option.gpu_type: option for option in plan_job(PlanRequest(**fields), offers(), now_ms=0).options}
    assert found["T4"].training.precision == "fp16"
    assert found["T4"].estimated.needed > found["L4"].estimated.needed
    for option in found.values():
        assert run_on(option, packed).training == option.training


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"precision": "fp16"}, {"method": "full"}])
def test_what_does_not_follow_the_gpu_is_not_sent_so(settings: dict[str, object]) -> None:
    """A server from before knows nothing of it."""
    packed = pack({"model": "meta-llama/Llama-3.2-1B", **settings}, ROWS)
    assert packed.template.training.precision_by_gpu is None
    assert "precision_by_gpu" not in plan_fields(packed, None)


def test_short_rows_are_not_paid_for_as_long_ones() -> None:
    """How long a step takes follows from the tokens that rows have; memory from the longest that there may be."""
    plain = pack({"model": "meta-llama/Llama-3.1-8B", "method": "lora"}, ROWS)
    training = plain.template.training.model_copy(update={"row_tokens": 128})
    short = replace(plain, template=plain.template.model_copy(update={"training": training}))
    assert plan_fields(short, None) == {**plan_fields(plain, None), "row_tokens": 128}
    full, quick = (plan_job(PlanRequest(**plan_fields(one, None)), offers(), now_ms=0) for one in (plain, short))
    times = {option.gpu_type: option for option in quick.options}
    for option in full.options:
        other = times[option.gpu_type]
        assert other.verdict == option.verdict
        if option.step is not None and other.step is not None:
            assert other.step.ms < option.step.ms / 3
            assert other.best.cost is not None
            assert option.best.cost is not None
            assert other.best.cost < option.best.cost
        assert run_on(other, short).step == other.step
    assert full.one_gpu_bytes == quick.one_gpu_bytes


def test_a_machine_has_to_have_room_for_a_save_and_for_the_export() -> None:
    """Offers with less are passed over; where nothing is left, the reason says so. A merged adapter takes the whole
    model's weights, and a script of one's own whatever it likes."""
    packed = pack({"model": "meta-llama/Llama-3.1-8B", "method": "lora", "export": "merged"}, ROWS)
    fields = plan_fields(packed, None)
    assert fields["export"] == "merged"
    assert "export" not in plan_fields(pack({"model": "meta-llama/Llama-3.1-8B"}, ROWS), None)
    small = [replace(one, memory_bytes=16 * GB, offer_id="small", provider="other") for one in offers()]
    plan = plan_job(PlanRequest(**fields), [*small, *offers()], now_ms=0)
    assert plan.host_bytes is not None
    assert 25 * GB < plan.host_bytes < 40 * GB
    assert {quote.offer.provider for option in plan.options for quote in option.quotes} == {offers()[0].provider}
    nowhere = plan_job(PlanRequest(**fields), small, now_ms=0)
    assert (nowhere.chosen, nowhere.options, nowhere.host_bytes) == (None, (), plan.host_bytes)
    assert f"; {len(small)} offers have less than the {plan.host_bytes / GB:.1f} GB of memory" in nowhere.reason
    adapter = plan_job(PlanRequest(**(fields | {"export": "adapter"})), small, now_ms=0)
    assert adapter.chosen is not None
    script = plan_job(
        PlanRequest(**{name: value for name, value in fields.items() if name != "layout"}), small, now_ms=0
    )
    assert script.host_bytes is None
    assert script.chosen is not None


def test_of_pairs_nothing_is_left_open() -> None:
    """A layout counts sequences, and a pair is two: half of one is never planned."""
    pairs = [{"prompt": f"a{number}", "chosen": "b", "rejected": "c"} for number in range(40)]
    packed = pack({"model": "meta-llama/Llama-3.2-1B"}, pairs)
    training = packed.template.training
    assert (packed.recipe.task, training.micro_batch, training.checkpointing) == ("dpo", 4, False)
    for option in plan_job(PlanRequest(**plan_fields(packed, None)), offers(), now_ms=0).options:
        assert run_on(option, packed).training == option.training
        assert (option.training.batch, option.training.checkpointing) == (4, False)


def test_where_it_fits_nowhere_a_smaller_micro_batch_is_named() -> None:
    """A plan that is free to choose would have taken it; this one says what the user has to set."""
    packed = pack(
        {"model": "meta-llama/Llama-3.1-8B", "method": "qlora", "micro_batch": 16, "sequence_length": 2048}, ROWS
    )
    small = [one for one in offers() if one.gpu_type == "RTX4090"]
    plan = plan_job(PlanRequest(**plan_fields(packed, None)), small, now_ms=0)
    assert plan.chosen is None
    told = {mend.changes: mend.message for mend in plan.mends}
    assert told["micro_batch=1",] == "take one sequence at a time (micro_batch 1)"
