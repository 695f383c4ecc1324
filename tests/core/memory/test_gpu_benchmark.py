"""The benchmark on a machine's own GPU: what it measures, how it scores, and what it says where there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from app.core.memory import MODELS, estimate
from app.core.memory.calibration import Observed
from benchmarks import memory_gpu
from benchmarks.memory_gpu import Case, Device

A100 = Device("NVIDIA A100-SXM4-40GB", 42_300_000_000, {"torch": "2.9.0", "transformers": "5.1.0", "peft": "0.18"})
WITH_4_BITS = replace(A100, versions={**A100.versions, "bitsandbytes": "0.48"})


def as_if(ratio: float) -> Any:
    def measure(case: Case) -> Observed:
        found = estimate(MODELS[case.model], case.training)
        peak = round(found.allocated.expected * ratio)
        return Observed(peak, round(peak * 1.05), round(peak * 1.05) + (400 << 20))

    return measure


def silent(text: str) -> None:
    """Nobody listens."""


def test_every_method_kernel_and_kind_of_checkpointing() -> None:
    """About twenty cases; without bitsandbytes those with 4-bit weights are missing."""
    all_of_them = list(memory_gpu.cases(WITH_4_BITS.versions))
    assert len(all_of_them) == len(set(all_of_them)) == 24
    assert {(each.method, each.attention, each.checkpointing) for each in all_of_them} == {
        (method, attention, recomputes)
        for method in ("full", "lora", "qlora")
        for attention in ("flash", "eager")
        for recomputes in (False, True)
    }
    assert {each.method for each in memory_gpu.cases(A100.versions)} == {"full", "lora"}


def test_calibration_is_scored_on_what_it_has_not_seen() -> None:
    """A GPU on which everything takes a fifth more: nearer after calibration by the others; a perfect one stays so."""
    told = memory_gpu.measured_all(WITH_4_BITS, as_if(1.2), silent)["detail"]
    assert told["predicted"]["mean"] == pytest.approx(1 / 1.2, abs=1e-3)
    assert told["calibrated"]["mean"] > told["predicted"]["mean"] + 0.05
    assert told["calibrated"]["count"] == 24
    assert memory_gpu.measured_all(A100, as_if(1.0), silent)["detail"]["calibrated"]["worst"] == pytest.approx(1)


def test_what_is_not_sure_to_fit_is_left_out_and_named() -> None:
    """On a small GPU: nothing larger than it is started; on none that fits, there is no value."""
    small = memory_gpu.measured_all(replace(A100, total_bytes=6_000_000_000), as_if(1.0), silent)
    assert 0 < small["detail"]["predicted"]["count"] < 16
    assert any(each.startswith("llama-3.2-1b full") for each in small["detail"]["left_out"])
    assert memory_gpu.measured_all(replace(A100, total_bytes=1), as_if(1.0), silent)["value"] is None


def test_a_case_that_ran_out_of_memory_is_told() -> None:
    """It has no accuracy, and its name is in the result: a verdict was wrong."""

    def measure(case: Case) -> Observed:
        return Observed(out_of_memory_bytes=A100.total_bytes) if case.method == "full" else as_if(1.0)(case)

    told = memory_gpu.measured_all(A100, measure, silent)["detail"]
    assert len(told["out_of_memory"]) == 8
    assert told["predicted"]["count"] == 8


@pytest.mark.parametrize(
    ("absent", "why"),
    [("torch", "torch is not installed"), ("peft", "peft is not installed"), (None, "no CUDA device")],
)
def test_without_a_gpu_it_says_why_and_fails(
    absent: str | None, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2; the reason on standard error and in the JSON object, which is last."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if absent is not None:
        find = memory_gpu.importlib.util.find_spec
        monkeypatch.setattr(memory_gpu.importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    assert memory_gpu.main([]) == 2
    told = capsys.readouterr()
    assert why in told.err
    last = json.loads(told.out.splitlines()[-1])
    assert (last["value"], why in last["reason"]) == (None, True)


@pytest.mark.training
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks by that name
@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_measured_process_trains_the_real_module(method: str) -> None:
    """Small and on the CPU: the module has exactly the parameters that are predicted for, and they change."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("peft")
    from app.core.memory.parameters import adapter_parameters, parameters_of
    from benchmarks.memory_gpu_case import built, train

    model = replace(
        MODELS["smollm2-360m"], hidden=32, intermediate=64, layers=2, heads=4, kv_heads=2, head_dim=8, vocab=64
    )
    training = replace(Case("", method, "eager", checkpointing=False).training, batch=2, sequence=8)
    module = built(model, training, "cpu")
    mine = [each for each in module.parameters() if each.requires_grad]
    names = training.names_of(model)
    count = adapter_parameters(model, training.rank, names) if method == "lora" else parameters_of(model).total
    assert sum(each.numel() for each in mine) == count
    before = [each.detach().clone() for each in mine]
    train(module, training, model.vocab, "cpu")
    assert any(not torch.equal(one, other) for one, other in zip(before, mine, strict=True))
