"""A full fine-tuning of which each GPU has a share is the one on a single GPU, bit for bit, and ends as one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from allpass.training.elastic.ranks import Ranks
from allpass.training.spread_state import load_spread, names_in
from allpass.training.tree import Parts, Shard
from tests.training.forking import CLIENT
from tests.training.gangs import OnGpus
from tests.training.scripts import Host, Machine, files_of, wait_for_step
from tests.training.test_lost_ranks import GANG, ground, left_of, machine
from tests.training.test_several_gpus import COMMON, SUMS, VOTES
from tests.training.test_several_machines import Gang
from workers.trainer import gathering
from workers.trainer.splitting_all import SplitModel

__all__ = ["ground"]  # a fixture
pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # of another name for recomputing
]
# (model, parameters). Of 20 rows a step has 8, 8 and 4: four parts, and two.
KINDS: dict[str, Any] = {
    "wide": ("llama", {"precision": "fp32", "clip_norm": 0.3}),
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


@pytest.mark.parametrize(
    ("kind", "counts", "stops"),
    [("wide", (2, 2), (2,)), ("wide", (2, 3, 1), (1, 2)), ("wide", (1, 4), (2,)), ("classifier", (3, 2), (1,))],
    ids=["same", "more, then one", "from one", "fewer"],
)
def test_a_stop_is_saved_and_any_number_of_gpus_goes_on(
    alone: dict[str, OnGpus],
    bases: dict[str, tuple[str, Path]],
    kind: str,
    counts: tuple[int, ...],
    stops: tuple[int, ...],
    tmp_path: Path,
) -> None:
    """Exactly, with the best weights so far, which each has its share of as well."""
    found = course(tmp_path, bases, kind, *counts).run(stops=stops)
    assert_same(found, alone[kind])
    first = found.parts[0] / "checkpoints" / f"step-{stops[0]:08d}"
    assert len(names_in(first)) == counts[0]


def test_the_best_weights_are_left_where_later_ones_are_worse(
    bases: dict[str, tuple[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they lie on the disk, and the model is put together there."""
    from workers.trainer import best, split_checkpoints

    worse = {"steps": 6, "evaluate_every": 1, "learning_rate": 0.5, "warmup": 0.0}
    whole = course(tmp_path / "whole", bases, "wide", 1, **worse).run()
    assert whole.summary()["best_step"] < 6
    for module in (best, split_checkpoints):
        monkeypatch.setattr(module, "IN_MEMORY_BYTES", 0)
    found = course(tmp_path / "split", bases, "wide", 2, 3, **worse).run(stops=(4,))
    assert files_of(found.output) == files_of(whole.output)


def test_another_job_begins_with_what_it_has_learned(
    alone: dict[str, OnGpus], bases: dict[str, tuple[str, Path]], tmp_path: Path
) -> None:
    """Whoever of the two is split."""
    split = course(tmp_path / "split", bases, "wide", 3).run()
    learned = [one.last_checkpoint for one in (split, alone["wide"])]
    found = [
        course(tmp_path / str(number), bases, "wide", count, steps=2, seed=9)
        for number, count in enumerate((1, 2))
    ]  # fmt: skip
    for one, folder in zip(found, learned, strict=True):
        one.learned = folder
        one.run()
    assert found[0].points() == found[1].points()
    assert files_of(found[0].output) == files_of(found[1].output)


def test_without_it_the_same_is_learned(
    alone: dict[str, OnGpus], bases: dict[str, tuple[str, Path]], tmp_path: Path
) -> None:
    """So a training may begin split and go on with a copy on each GPU, or the other way."""
    whole = course(tmp_path, bases, "wide", 2, sharded=False).run()
    assert whole.points() == alone["wide"].points()
    found, expected = files_of(whole.output), files_of(alone["wide"].output)
    assert found.pop("training.json") != expected.pop("training.json")  # it says how it was asked for
    assert found == expected


@pytest.fixture(scope="module")
def whole(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Machine:
    """On a single GPU."""
    place = machine(tmp_path_factory.mktemp("whole") / "job", ground, 1, followers, method="full", sharded=True)
    assert hosts[0].start(GANG, place).exit_code() == 0
    return place


@pytest.mark.parametrize(
    ("fault", "code", "last"),
    [
        ("1 2 kill", 137, "error: rank 1 of 3 was killed (SIGKILL): the others were ended"),
        ("2 2 raise", 1, "error: rank 2 of 3 ended with code 1 before the training did, ValueError: no such number: "),
    ],
)
def test_who_is_lost_takes_its_share_along_and_all_end(
    hosts: tuple[Host, Host],
    followers: str,
    ground: tuple[str, Path],
    whole: Machine,
    fault: str,
    code: int,
    last: str,
    tmp_path: Path,
) -> None:
    """With its rank; up to there every loss was right."""
    place = machine(tmp_path / "job", ground, 3, followers, fault=fault, method="full", sharded=True)
    process = hosts[0].start(GANG, place)
    assert process.exit_code() == code, process.output
    assert process.output.splitlines()[-1].startswith(last), process.output
    assert not left_of(place)
    for step, loss in place.losses().items():
        assert loss == whole.losses()[step]


def test_what_cannot_be_split_is_refused_before_anything_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers with weights of two types, and a torch that adds gradients in its own order."""
    row = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(torch.bfloat16))])
    with pytest.raises(ValueError, match=r"weights of torch\.bfloat16 and torch\.float32 within a layer"):
        SplitModel(nn.Sequential(row), row, Ranks(), torch.device("cpu"))
    monkeypatch.delattr(FSDPModule, "set_custom_reduce_scatter")
    with pytest.raises(ValueError, match=r"sharded: torch .* is too old"):
        SplitModel(nn.Sequential(row), row, Ranks(), torch.device("cpu"))


PARTS = {"ALLPASS_PARTS": "1", "LOCAL_RANK": "0"}


def over_two(folder: Path, ground: tuple[str, Path], gpus: int, followers: str, *of: Path, **more: Any) -> Gang:
    """A job on two machines. `of`: the parts of the checkpoint that it goes on from, by machine."""
    resumed = None
    if of:
        resumed = folder / "resumed" / of[0].name
        for part in of:
            shutil.copytree(part, resumed, dirs_exist_ok=True)
    gang = Gang(folder, ground, gpus, followers, resumed, method="full", sharded=True, **more)
    for place in gang.places:
        place.environment |= PARTS
    return gang


def parts_of(place: Machine) -> list[Path]:
    """What a machine has told that it has written its part of."""
    lines = [json.loads(line) for line in (place.folder / "metrics.jsonl").read_text().splitlines()]
    return [place.folder / "checkpoints" / line["checkpoint_part"] for line in lines if "checkpoint_part" in line]


@pytest.mark.parametrize("gpus", [1, 2])
def test_machines_share_it_and_each_writes_its_part(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], gpus: int, tmp_path: Path
) -> None:
    """Over all GPUs of both: losses and model are those of one. The further machine is asked to leave; it goes on from
    both parts, on as many GPUs or on others."""
    whole = machine(tmp_path / "whole", ground, 1, followers, method="full", sharded=True, steps=40)
    assert hosts[0].start(GANG, whole).exit_code() == 0
    gang = over_two(tmp_path / "first", ground, gpus, followers, steps=40).start(hosts)
    wait_for_step(gang.first, 1)
    gang.processes[1].stop()
    assert gang.codes() == (75, 75), gang.words()
    assert "Traceback" not in gang.words()
    parts = [parts_of(place)[-1] for place in gang.places]
    names = [{path.stem for path in part.glob("*.json")} for part in parts]
    assert [len(one) for one in names] == [gpus, gpus]
    assert not names[0] & names[1]
    again = over_two(tmp_path / "again", ground, 1, followers, *parts, steps=40).start(hosts)
    assert again.codes() == (0, 0), again.words()
    assert {**gang.first.losses(), **again.first.losses()} == whole.losses()
    assert files_of(again.first.folder / "output") == files_of(whole.folder / "output")
    assert "training: weights, gradients and states are split over 2 GPUs" in again.processes[0].output
    assert not again.left()


def test_machines_whose_parts_nobody_puts_together_are_refused_at_once(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    """Rather than at the first save."""
    gang = over_two(tmp_path, ground, 1, followers)
    for place in gang.places:
        del place.environment["ALLPASS_PARTS"]
    gang.start(hosts)
    assert gang.codes() == (1, 1), gang.words()
    assert "is of a release that does not put parts of several machines together" in gang.processes[0].output
    assert gang.first.losses() == {}
