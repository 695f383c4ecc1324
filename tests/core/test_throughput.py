"""How long a step takes: measured where it was measured, scaled where something near was, else the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.memory import MODELS, Training
from app.core.roofline import COMPUTE_REACHED, GPUS, gpu_named, step_ms
from app.core.throughput import MeasuredStep, Throughput, key_of, updated

MODEL = MODELS["llama-3-8b"]
LORA = Training("lora", 4, 2048, accumulation=4)
NAME = "llama-3-8b"


def table(*rows: tuple[str, Training, float, float]) -> Throughput:
    found = Throughput()
    for gpu_type, training, measured, roofline in rows:
        found.learn(key_of(NAME, training, gpu_type, MODEL.layers), measured, roofline)
    return found


def test_a_large_step_is_bound_by_arithmetic() -> None:
    """Full training of 8B: six operations per parameter and token, at the share of the peak that training reaches."""
    full = Training("full", 4, 2048)
    least_ms = 6 * 8e9 * 4 * 2048 / (GPUS["a100"].half_tflops * 1e12 * COMPUTE_REACHED) * 1000
    assert least_ms < step_ms(MODEL, full, GPUS["a100"]) < 1.5 * least_ms


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["lora", "full"]),
    st.integers(1, 8),
    st.sampled_from([128, 1024, 4096]),
    st.sampled_from(list(GPUS)),
)
def test_more_work_never_takes_less(method: str, batch: int, sequence: int, gpu: str) -> None:
    """More sequences, longer ones, more accumulation, recomputed activations, and eager attention all cost time."""
    base = Training(method, batch, sequence, precision="fp16")  # type: ignore[arg-type]  # a word from a table
    time = step_ms(MODEL, base, GPUS[gpu])
    assert time > 0
    for change in (
        {"batch": batch + 1},
        {"sequence": sequence * 2},
        {"accumulation": 2},
        {"checkpointing": True},
        {"attention": "eager"},
    ):
        assert step_ms(MODEL, replace(base, **change), GPUS[gpu]) >= time


def test_adapters_are_quicker_than_full_training_and_experts_that_rest_cost_nothing() -> None:
    """Frozen weights need no gradients; a mixture computes with two of its eight experts."""
    assert step_ms(MODEL, LORA, GPUS["a100"]) < step_ms(MODEL, replace(LORA, method="full"), GPUS["a100"])
    mixture = MODELS["mixtral-8x7b"]
    all_at_work = replace(mixture, experts_per_token=8)
    assert step_ms(mixture, LORA, GPUS["h100"]) < 0.5 * step_ms(all_at_work, LORA, GPUS["h100"])


def test_several_gpus_divide_the_work_and_talk() -> None:
    """Four replicas do the same batch in less than half the time, and in more than a quarter of it."""
    alone = step_ms(MODEL, replace(LORA, method="full"), GPUS["a100"])
    four = replace(LORA, method="full", accumulation=1, gpus=4, sharding="fsdp")
    assert 0.25 * alone < step_ms(MODEL, four, GPUS["a100"]) < 0.5 * alone
    slow_link = step_ms(MODEL, four, replace(GPUS["a100"], link_gbs=12))
    assert slow_link > step_ms(MODEL, four, GPUS["a100"])


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ("A100-SXM4-80GB", "a100"), ("NVIDIA L40S", "l40s"), ("RTX A6000", "a6000"), ("Tesla T4", "t4"),
        ("rtx 4090", "rtx4090"), ("RTX 6000 Ada", "rtx6000ada"), ("A10G", "a10g"), ("H100 NVL", "h100"),
        ("L4", "l4"), ("RTX 3090 Ti", "rtx3090ti"), ("RTX 3090 laptop", None), ("A1000", None), ("Gaudi", None),
    ],
)  # fmt: skip
def test_gpus_are_known_as_providers_write_them(told: str, known: str | None) -> None:
    """Makers, forms and sizes are left aside; a different GPU of a similar name is not taken for it."""
    assert gpu_named(told) == (None if known is None else GPUS[known])


def test_bf16_without_units_for_it_is_slow() -> None:
    """A T4 computes bf16 at its float32 rate."""
    bf16 = step_ms(MODEL, replace(LORA, precision="bf16"), GPUS["t4"])
    assert bf16 > 4 * step_ms(MODEL, replace(LORA, precision="fp16"), GPUS["t4"])


def test_exactly_this_was_measured() -> None:
    """The measurement is the answer, whatever the estimate says; also on GPUs without figures."""
    known = table(("Strange", LORA, 1234.0, 1.0))
    found = known.step(MODEL, LORA, "strange", name=NAME)
    assert found is not None
    assert (found.ms, found.source) == (1234.0, "measured")
    assert known.step(MODEL, replace(LORA, batch=2), "strange", name=NAME) is None


def test_something_near_was_measured() -> None:
    """Runs twice as slow as estimated make the estimate of a similar one slower, more the more there were."""
    bare = Throughput().step(MODEL, LORA, "A100", name=NAME)
    assert bare is not None
    assert bare.source == "estimate"
    other = replace(LORA, batch=1)
    one = table(("A100", other, 200.0, 100.0)).step(MODEL, LORA, "A100", name=NAME)
    many = table(*[("A100", replace(LORA, batch=size), 200.0, 100.0) for size in (1, 2, 8, 16)]).step(
        MODEL, LORA, "A100", name=NAME
    )
    assert one is not None
    assert many is not None
    assert (one.source, many.source) == ("scaled", "scaled")
    assert bare.ms < one.ms < many.ms < 2 * bare.ms
    elsewhere = table(("A100", other, 200.0, 100.0)).step(MODEL, LORA, "H100", name=NAME)
    roofline = Throughput().step(MODEL, LORA, "H100", name=NAME)
    assert elsewhere is not None
    assert roofline is not None
    assert 1 < elsewhere.ms / roofline.ms < one.ms / bare.ms


def test_a_table_read_again_answers_the_same() -> None:
    """What was learned one by one and what was kept give one answer."""
    key, other = (key_of(NAME, replace(LORA, batch=size), "A100", MODEL.layers) for size in (1, 2))
    grown = Throughput()
    kept: dict[object, MeasuredStep] = {}
    for known, ms in ((key, 150.0), (other, 90.0), (key, 130.0), (key, 400.0)):
        kept[known] = grown.learn(known, ms, 100.0)
    read = Throughput.of(kept)  # type: ignore[arg-type]  # a word from a table
    one, two = grown.step(MODEL, LORA, "A100", name=NAME), read.step(MODEL, LORA, "A100", name=NAME)
    assert one is not None
    assert two is not None
    assert one.ms == pytest.approx(two.ms)


def test_newer_measurements_count_more_but_one_alone_does_not_decide() -> None:
    """A plain mean at first, then a third of the way to the newest."""
    row = updated(updated(None, 100.0, 50.0), 200.0, None)
    assert (row.step_ms, row.samples, row.roofline_ms) == (150.0, 2, 50.0)
    for _ in range(20):
        row = updated(row, 300.0, 60.0)
    assert 290 < row.step_ms < 300
    assert updated(row, 3000.0, 60.0).step_ms < 1200


def test_steps_with_a_reference_are_measured_apart() -> None:
    """They are half as long again: what was measured of them is not believed of others, nor the other way round."""
    pairs = replace(LORA, reference_pass=True)
    found = table(("H100", pairs, 9000.0, 4500.0))
    alone, other = (found.step(MODEL, one, "H100", name=NAME) for one in (pairs, LORA))
    assert alone is not None and other is not None
    assert (alone.ms, alone.source) == (9000.0, "measured")
    assert other.source == "scaled"
