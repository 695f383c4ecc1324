"""The built-in recipe trains on the GPUs that it was given, or says why not; it never falls back to the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from allpass.recipe.packing import pack
from allpass.training.elastic import given_gpus
from app.core import pinned
from tests.training import tiny
from tests.training.recipes import Course
from workers.agent.facts import unusable_of

pytestmark = pytest.mark.training
ROWS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(8)]
GIVEN = "NVIDIA A100-SXM4-40GB, NVIDIA A100-SXM4-40GB"


class Telling:
    """In place of a session: what it was told."""

    def __init__(self) -> None:
        self.told: dict[str, object] = {}

    def tell(self, **facts: object) -> None:
        self.told.update(facts)


def checked() -> Telling:
    session = Telling()
    try:
        given_gpus.check(session)  # type: ignore[arg-type]  # all that it needs of one
    except SystemExit as left:
        session.told["left"] = str(left.code)
    return session


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("ALLPASS_GPUS", raising=False)


def test_without_gpus_of_its_own_it_trains_on_the_cpu() -> None:
    """A laptop, and the machines of a demonstration."""
    assert checked().told == {}


def test_gpus_that_can_be_used_are_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said where all is well."""
    monkeypatch.setenv("ALLPASS_GPUS", GIVEN)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert checked().told == {}


def test_gpus_that_cannot_be_used_are_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which GPUs, which build of torch and which driver that needs; an agent reads that."""
    monkeypatch.setenv("ALLPASS_GPUS", GIVEN)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    session = checked()
    why = unusable_of(json.loads(json.dumps(session.told)))
    assert why == f"the job was given {GIVEN}, and torch cannot use it: " + given_gpus.needs(torch.__version__, "13.0")
    assert session.told["left"] == f"error: {why}"


def test_a_torch_without_cuda_is_the_jobs_own_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine would not help: no blame, and what to do."""
    monkeypatch.setenv("ALLPASS_GPUS", GIVEN)
    monkeypatch.setattr(torch.version, "cuda", None)
    session = checked()
    assert set(session.told) == {"left"}
    assert "is a build without CUDA; leave torch out of the packages" in str(session.told["left"])


def test_the_driver_that_is_named_is_the_pinned_one() -> None:
    """Both say the same of the same CUDA; of one that is not known, no driver is made up."""
    assert f"driver {pinned.DRIVER} or newer" in given_gpus.needs(pinned.TORCH, f"{pinned.CUDA:.1f}")
    assert given_gpus.needs("2.0", "99.1") == "torch 2.0 is built for CUDA 99.1"


def test_a_job_ends_before_its_model_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is one that nobody has: it was not asked for."""
    monkeypatch.setenv("ALLPASS_GPUS", GIVEN)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    packed = pack({"model": "org/none"}, ROWS)
    data = tiny.write_rows(tmp_path / "rows", "prompt", ROWS)
    with pytest.raises(SystemExit, match="error: the job was given NVIDIA A100"):
        Course(tmp_path / "course", data, dict(packed.parameters)).run(by_hand=False)
