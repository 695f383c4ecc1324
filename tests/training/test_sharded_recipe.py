"""The base model split over GPUs: what comes out is what one GPU gives, bit for bit; each holds its share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.forking import CLIENT
from tests.training.gangs import OnGpus
from tests.training.scripts import files_of
from tests.training.test_several_gpus import COMMON, KINDS, assert_same, bases
from workers.trainer import gathering

__all__ = ["bases"]  # a fixture
pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SHARDED = {"lora": "lora", "recomputing": "lora", "dora": "lora", "pairs": "pairs", "classifier": "classifier"}
MORE: dict[str, dict[str, Any]] = {
    "recomputing": {"checkpointing": True, "precision": "bf16"},
    "dora": {"use_dora": True, "use_rslora": True, "steps": 2},
}


@pytest.fixture(autouse=True)
def forked(followers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKS", followers)
    monkeypatch.setattr(gathering, "COMMAND", CLIENT)


def course(folder: Path, bases: dict[str, tuple[str, Path]], kind: str, *counts: int, **more: Any) -> OnGpus:
    base, parameters = KINDS[SHARDED[kind]]
    model, rows = bases[base]
    parameters = {"model": model, **COMMON, **parameters, "sharded": True, **MORE.get(kind, {}), **more}
    training = {"micro_batch": 2, "checkpointing": bool(parameters.get("checkpointing"))}
    return OnGpus(folder, rows, parameters, counts=counts, training=training)


@pytest.fixture(scope="module")
def alone(bases: dict[str, tuple[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, OnGpus]:
    """Each kind on a single GPU, which holds all of it."""
    return {kind: course(tmp_path_factory.mktemp(kind), bases, kind, 1).run() for kind in SHARDED}


@pytest.mark.parametrize(
    ("kind", "count"),
    [("lora", 2), ("lora", 3), ("lora", 4), ("recomputing", 2), ("dora", 2), ("pairs", 3), ("classifier", 3)],
)
def test_however_many_gpus_share_it_it_ends_the_same(
    alone: dict[str, OnGpus], bases: dict[str, tuple[str, Path]], kind: str, count: int, tmp_path: Path
) -> None:
    """Also where they do not share a step's parts evenly, or a step, or what is held out, has fewer parts than GPUs."""
    found = course(tmp_path, bases, kind, count).run()
    assert_same(found, alone[kind])
    told = [line["training"] for line in found.lines() if "sharding" in line.get("training", {})]
    parts = -(-8 // found.parameters["micro_batch"])
    assert [(one["sharding"], one["accumulation"]) for one in told] == [("fsdp", -(-parts // count))]


def test_without_it_the_same_is_learned(
    alone: dict[str, OnGpus], bases: dict[str, tuple[str, Path]], tmp_path: Path
) -> None:
    whole = course(tmp_path, bases, "lora", 2, sharded=False).run()
    assert whole.points() == alone["lora"].points()
    found, expected = files_of(whole.output), files_of(alone["lora"].output)
    assert found.pop("training.json") != expected.pop("training.json")  # it says how it was asked for
    assert found == expected
