"""How a run is laid out on the GPUs that it got."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.layout import GpuSet, Layout, lay_out
from app.core.memory import Training, estimate, model_named, verdict
from app.core.memory.exact import Exact, ExactPeak
from app.core.memory.need import Stated, least_need

GB = 1_000_000_000
PLAIN = Training(method="lora", batch=1, sequence=1024)
STATED = Stated("llama-3.2-1b", model_named("llama-3.2-1b"), PLAIN, 12, 1)


def on(gpus: int = 1, memory_gb: float = 40, stated: Stated = STATED, gpu_type: str = "A100") -> Layout:
    return lay_out(stated, GpuSet(gpu_type, round(memory_gb * GB), gpus))


@given(st.integers(1, 48), st.integers(1, 8), st.sampled_from([8, 16, 24, 40, 80]))
def test_the_users_batch_is_kept(batch: int, gpus: int, memory_gb: int) -> None:
    """Whatever the machine: data parallel x micro-batch x accumulation is the batch, on no more GPUs than there are."""
    told = on(gpus, memory_gb, replace(STATED, batch=batch)).as_json()
    assert told["data_parallel"] * told["micro_batch"] * told["accumulation"] == told["batch"] == batch
    assert told["gpus"] == told["data_parallel"] <= gpus


@given(st.sampled_from(["A100", "T4", "a kind without figures"]), st.sampled_from([1, 2, 4]), st.floats(6, 90))
def test_what_is_said_to_fit_fits(gpu_type: str, gpus: int, memory_gb: float) -> None:
    """By the same verdict as everywhere; and where it may not, nothing that keeps to the template needs less."""
    found = on(gpus, memory_gb, gpu_type=gpu_type)
    told = verdict(estimate(STATED.model, found.training), found.place.memory_bytes)
    assert (told == "fits") == found.fits
    if not found.fits:
        assert least_need(replace(STATED, gpus=found.training.gpus)).capacity_bytes > found.place.memory_bytes


def test_a_larger_gpu_recomputes_nothing() -> None:
    """The quickest that fits: with room, all at once; with less, more micro-batches or recomputed activations."""
    roomy, tight = on(memory_gb=80).training, on(memory_gb=12).training
    assert (roomy.batch, roomy.accumulation, roomy.checkpointing) == (12, 1, False)
    assert tight.checkpointing or tight.batch < 12


def test_what_the_template_states_stays() -> None:
    """A micro-batch and recomputing that were stated are the script's already."""
    stated = replace(STATED, micro_batch=2, checkpointing=True)
    training = on(2, 80, stated).training
    assert (training.batch, training.accumulation, training.checkpointing) == (2, 3, True)


def test_symbolic_runs_are_used() -> None:
    """What a run showed to need more than there is, is not taken."""
    usual = on(memory_gb=80).training
    peak = ExactPeak(usual.batch, usual.checkpointing, False, 10**9, 90 * GB, 10**9)
    other = on(memory_gb=80, stated=replace(STATED, exact=Exact(10**9, (peak,)))).training
    assert (other.batch, other.checkpointing) != (usual.batch, usual.checkpointing)


@pytest.mark.parametrize(("gpus", "memory_gb"), [(1, 80), (2, 16), (1, 5)])
def test_it_is_said_in_words(gpus: int, memory_gb: int) -> None:
    """Where, how, and in how much memory; and that it may be too little, where it may."""
    found = on(gpus, memory_gb)
    words = found.in_words()
    assert words.startswith(f"laid out on {gpus} A100: {gpus} x {found.training.batch} sequences")
    assert f"of {memory_gb}.0 GB each" in words
    assert ("may be too little" in words) == (memory_gb == 5)
    assert ("activations recomputed" in words) == found.training.checkpointing
