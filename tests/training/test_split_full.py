"""A full fine-tuning of which each GPU has a share is the one on a single GPU, bit for bit, and ends as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from allpass.training.spread_state import load_spread, names_in, own_weights
from allpass.training.tree import Parts, Shard
from tests.training.forking import CLIENT
from tests.training.gangs import OnGpus
from tests.training.scripts import Host, Machine, files_of
from tests.training.test_lost_ranks import GANG, ground, left_of, machine
from tests.training.test_several_gpus import COMMON, SUMS, VOTES
from tests.training.test_several_machines import Gang
from workers.trainer import gathering

__all__ = ["ground"]  # a fixture
pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # of another name for recomputing
]
# (model, parameters). Of 20 rows a step has 8, 8 and 4: four parts, and two.
KINDS: dict[str, Any] = {
    "wide": ("llama", {"precision": "fp32", "clip_norm": 0.3, "epochs": 2}),
    "autocast": ("tied", {"weight_decay": 0.1, "checkpointing": True}),
    "narrow": ("llama", {"precision": "bf16", "packing": False, "micro_batch": 3}),
    "classifier": ("bert", {"task": "classification"}),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Path]]:
    """By kind of model: its name, and the rows for it. None of its layers divides evenly by three."""
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("bases")
    sums = tiny.write_rows(folder / "sums", "prompt", SUMS[:20], SUMS[20:])
    votes = tiny.write_rows(folder / "votes", "labelled", VOTES[:16], VOTES[16:], ("against", "for"))
    return {
        "llama": (tiny.llama(folder / "llama", hidden=40, layers=3), sums),
        "tied": (tied(tiny.llama(folder / "tied", hidden=40, layers=2)), sums),
        "bert": (tiny.bert(folder / "bert", layers=2), votes),
    }


def tied(folder: str) -> str:
    """Words are read and guessed by one matrix, which is in no layer."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(folder, tie_word_embeddings=True)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def forked(followers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKS", followers)
    monkeypatch.setattr(gathering, "COMMAND", CLIENT)


def course(folder: Path, bases: dict[str, tuple[str, Path]], kind: str, *counts: int, **more: Any) -> OnGpus:
    base, parameters = KINDS[kind]
    model, rows = bases[base]
    parameters = {"model": model, "method": "full", "steps": 3, **COMMON, **parameters, "sharded": True, **more}
    training = {"micro_batch": parameters["micro_batch"], "checkpointing": bool(parameters.get("checkpointing"))}
    return OnGpus(folder, rows, parameters, counts=counts, training=training)


@pytest.fixture(scope="module")
def alone(
    bases: dict[str, tuple[str, Path]], followers: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, OnGpus]:
    """Each kind on a single GPU, which holds all of it."""
    return {kind: course(tmp_path_factory.mktemp(kind), bases, kind, 1).run() for kind in KINDS}


def whole_of(folder: Path) -> dict[str, Any]:
    """A checkpoint's tensors, put together, by where they are in it; and all else of it."""
    found: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Shard):
            assert isinstance(value.part, Parts)
            value = value.part.rows(0, value.part.shape[0])
        if isinstance(value, torch.Tensor):
            found[path] = (value.dtype, value.shape, value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{key}")
        elif isinstance(value, (list, tuple)):
            for key, item in enumerate(value):
                walk(item, f"{path}.{key}")
        else:
            found[path] = value

    walk(load_spread(folder), "state")
    return found


def assert_same(found: OnGpus, alone: OnGpus) -> None:
    assert found.points() == alone.points()
    assert files_of(found.output) == files_of(alone.output)
    assert whole_of(found.last_checkpoint) == whole_of(alone.last_checkpoint)


@pytest.mark.parametrize(
    ("kind", "count"),
    [("wide", 2), ("wide", 3), ("wide", 4), ("autocast", 2), ("autocast", 4), ("narrow", 3), ("classifier", 3)],
)
def test_however_many_gpus_share_it_it_ends_the_same(
    alone: dict[str, OnGpus], bases: dict[str, tuple[str, Path]], kind: str, count: int, tmp_path: Path
) -> None:
    """Also where they do not share a step's parts evenly, or a step has fewer parts than GPUs."""
    found = course(tmp_path, bases, kind, count).run()
    assert_same(found, alone[kind])
    told = [line["training"] for line in found.lines() if "sharding" in line.get("training", {})]
    parts = -(-8 // found.parameters["micro_batch"])
    assert [(one["sharding"], one["accumulation"]) for one in told] == [("fsdp", -(-parts // count))]
