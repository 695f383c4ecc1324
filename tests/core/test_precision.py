"""Which 16 bits a training computes in on a GPU, where it leaves that to the GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.layout import GpuSet, lay_out, lay_out_alone
from app.core.memory.calibration import Calibrations
from app.core.memory.catalogue import model_named
from app.core.memory.need import Stated
from app.core.memory.training import PRECISIONS, Precision, Training
from app.core.model.offer import Offer
from app.core.options import AskedJob, OwnLayout, options_for
from app.core.precision import has_bf16, in_fp16, on_gpu, told_precision
from app.core.throughput import Throughput, key_of
from app.errors import InvalidInput
from tests.core.samples import offer

GB = 1_000_000_000
LORA = Training("lora", 1, 512, narrow_adapters=True, precision_by_gpu=True)
QLORA = Training("qlora", 1, 512, quantisation="nf4_dq", autocast=True, precision_by_gpu=True)


@pytest.mark.parametrize(
    ("gpu_type", "has"),
    [
        *dict.fromkeys(
            ("T4", "Tesla T4", "NVIDIA Tesla V100-SXM2-16GB", "P100", "Tesla P40", "GTX 1080 Ti", "RTX 2080 Ti"), False
        ).items(),
        *dict.fromkeys(
            ("Quadro RTX 8000", "Q RTX 6000", "RTX 4000", "TITAN V", "K80", "M60", "GTX 1660"), False
        ).items(),
        *dict.fromkeys(("A100", "A10", "A2", "L4", "H100 PCIe", "RTX 3060", "RTX A4000", "RTX A2000"), True).items(),
        *dict.fromkeys(("RTX 6000 Ada", "RTX 5000Ada", "RTX PRO 6000", "GH200", "B200", "M1000X", ""), True).items(),
    ],
)
def test_types_are_known_as_providers_write_them(gpu_type: str, has: bool) -> None:
    """Of one that nobody knows it is believed that it is a newer one."""
    assert has_bf16(gpu_type) is has


@given(st.text(max_size=300))
def test_any_name_has_an_answer(gpu_type: str) -> None:
    """Providers call their GPUs as they like."""
    assert has_bf16(gpu_type) in {True, False}
    assert on_gpu(LORA, gpu_type).precision == ("bf16" if has_bf16(gpu_type) else "fp16")


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (LORA, ("fp16", True)),
        (QLORA, ("fp16", True)),
        (Training("full", 1, 512, precision="amp_bf16", precision_by_gpu=True), ("amp_fp16", False)),
    ],
)
def test_where_there_is_no_bf16_it_is_fp16_under_autocast(training: Training, expected: tuple[str, bool]) -> None:
    """And on other GPUs as it was; either way nothing is open any more, and asking again changes nothing."""
    there = on_gpu(training, "T4")
    assert (there.precision, there.autocast) == expected
    assert there.casts
    assert on_gpu(training, "A100") == replace(training, precision_by_gpu=False)
    assert on_gpu(there, "A100") == there == in_fp16(training)


@given(st.sampled_from(["T4", "V100", "A100", "unheard of"]), st.sampled_from(PRECISIONS))
def test_what_is_chosen_or_begun_stays(gpu_type: str, chosen: Precision) -> None:
    """A job's sums would be others, whatever is quicker on its next GPU."""
    plain = Training("full", 1, 512, precision=chosen)
    assert on_gpu(plain, gpu_type) is plain
    assert on_gpu(LORA, gpu_type, "fp16").precision == "fp16"
    assert on_gpu(LORA, gpu_type, "bf16").precision == "bf16"


@pytest.mark.parametrize("precision", ["fp16", "fp32", "amp_fp16"])
def test_it_contradicts_what_is_chosen(precision: Precision) -> None:
    with pytest.raises(InvalidInput, match=r"precision_by_gpu is True: precision '.*' is chosen already"):
        Training("full", 1, 512, precision=precision, precision_by_gpu=True)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (None, None), ({}, None), ([], None), ("fp16", None), ({"precision": 16}, None),
        ({"precision": ["fp16"]}, None),
        ({"precision": "of tomorrow"}, None), ({"precision": "fp16"}, "fp16"), ({"precision": "amp_bf16"}, "amp_bf16"),
    ],
)  # fmt: skip
def test_what_was_kept_of_a_run_may_be_anything(layout: object, expected: str | None) -> None:
    """An older or a newer release wrote it."""
    assert told_precision(layout) == expected


def stated(training: Training = LORA) -> Stated:
    return Stated("llama-3.2-1b", model_named("llama-3.2-1b"), training, 16, 1)


def test_a_run_is_laid_out_and_timed_as_it_computes_there() -> None:
    """In fp16 several times as fast as what emulated bf16 would take; its steps are measured under that name."""
    place = GpuSet("T4", 16 * GB, 1)
    for lay in (lay_out, lay_out_alone):
        found, emulated = lay(stated(), place), lay(stated(replace(LORA, precision_by_gpu=False)), place)
        assert (found.as_json()["precision"], found.as_json()["autocast"]) == ("fp16", True)
        assert emulated.as_json()["precision"] == "bf16"
        assert found.step is not None
        assert emulated.step is not None
        assert found.step.ms < emulated.step.ms / 2
        assert key_of("any", found.training, "T4", 16).precision == "fp16+autocast"
    begun = lay_out_alone(stated(), place, precision="bf16")
    assert begun.training.precision == "bf16"
    assert lay_out_alone(stated(), GpuSet("A100", 42 * GB, 1), precision="fp16").training.precision == "fp16"


def kinds() -> list[Offer]:
    names = {"T4": 16, "V100": 32, "A100": 42}
    return [
        offer(f"{name}-{count}", gpu_type=name, gpu_count=count, gpu_memory_bytes=size * GB)
        for name, size in names.items()
        for count in (1, 2)
    ]


@pytest.mark.parametrize("own", [None, OwnLayout()])
def test_a_plan_has_each_gpu_in_its_own_numbers(own: OwnLayout | None) -> None:
    """Where the GPU is open, and where it is not; on several GPUs as on one."""
    job = stated()
    wish = AskedJob(job.name, job.model, job.training, job.batch, 100, own=own)
    options = options_for(wish, kinds(), Throughput(), Calibrations())
    assert len(options) == 6
    assert {(each.gpu_type, each.training.precision) for each in options} == {
        ("T4", "fp16"), ("V100", "fp16"), ("A100", "bf16"),
    }  # fmt: skip
    plain = replace(wish, training=replace(wish.training, precision_by_gpu=False))
    for each in options_for(plain, kinds(), Throughput(), Calibrations()):
        (same,) = [one for one in options if (one.gpu_type, one.gpu_count) == (each.gpu_type, each.gpu_count)]
        assert each.step is not None
        assert same.step is not None
        assert same == each if each.gpu_type == "A100" else same.step.ms < each.step.ms / 2
