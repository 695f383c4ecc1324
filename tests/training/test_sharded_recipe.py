"""The base model split over GPUs: what comes out is what one GPU gives, bit for bit; each holds its share."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from app.core.out_of_memory import Ran, ran_out
from tests.training.forking import CLIENT
from tests.training.gangs import OnGpus
from tests.training.scripts import Host, Machine, files_of
from tests.training.test_lost_ranks import GANG, ground, left_of, machine
from tests.training.test_several_gpus import COMMON, KINDS, PAIRS, SUMS, VOTES, assert_same
from tests.training.test_several_machines import LONG, Gang
from workers.trainer import gathering
from workers.trainer.sharding import layers_of

__all__ = ["ground"]  # a fixture
pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SHARDED = {"lora": "lora", "recomputing": "lora", "dora": "lora", "pairs": "pairs", "classifier": "classifier"}
MORE: dict[str, dict[str, Any]] = {
    "recomputing": {"checkpointing": True, "precision": "bf16"},
    "dora": {"use_dora": True, "use_rslora": True, "steps": 2},
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Path]]:
    """By kind of model: its name, and the rows for it. None of its layers divides evenly by three."""
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("bases")
    llama = tiny.llama(folder / "llama", hidden=40, layers=3)
    return {
        "llama": (llama, tiny.write_rows(folder / "sums", "prompt", SUMS[:20], SUMS[20:])),
        "pairs": (llama, tiny.write_rows(folder / "pairs", "pair", PAIRS[:20], PAIRS[20:])),
        "bert": (
            tiny.bert(folder / "bert", layers=2),
            tiny.write_rows(folder / "votes", "labelled", VOTES[:16], VOTES[16:], ("against", "for")),
        ),
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


@pytest.fixture(scope="module")
def whole(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Machine:
    """On a single GPU."""
    place = machine(tmp_path_factory.mktemp("whole") / "job", ground, 1, followers, sharded=True)
    assert hosts[0].start(GANG, place).exit_code() == 0
    return place


@pytest.mark.parametrize(
    ("fault", "code", "last"),
    [
        ("1 2 kill", 137, r"error: rank 1 of 3 was killed \(SIGKILL\): the others were ended"),
        ("2 1 exit", 1, "error: rank 2 of 3 ended with code 0 before the training did: the others were ended"),
        ("1 2 hang", 1, r"error: nothing has moved for \d+ s.*: none of the 3 processes gets on: the others were"),
        ("2 2 raise", 1, "error: rank 2 of 3 ended with code 1 before the training did, ValueError: no such number: "),
        ("1 2 memory0", 1, "error: rank 1 of 3 ended with code 1 before the training did"),
    ],
)
def test_who_is_lost_takes_its_share_along_and_it_goes_on_from_its_checkpoint(
    hosts: tuple[Host, Host],
    followers: str,
    ground: tuple[str, Path],
    whole: Machine,
    fault: str,
    code: int,
    last: str,
    tmp_path: Path,
) -> None:
    """The others, who wait in the middle of their part, are ended. It is said who it was, where that can be known: of
    those that hang together in a layer it cannot."""
    place = machine(tmp_path / "job", ground, 3, followers, fault=fault, sharded=True)
    process = hosts[0].start(GANG, place)
    assert process.exit_code() == code, process.output
    assert re.match(last, process.output.splitlines()[-1]), process.output
    assert (ran_out(1, process.output) is Ran.GPU) == ("memory" in fault), process.output
    assert not left_of(place)
    for step, loss in place.losses().items():
        assert loss == whole.losses()[step]


@pytest.mark.parametrize("gpus", [1, 2])
def test_each_of_two_machines_holds_all_of_the_base(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], whole: Machine, gpus: int, tmp_path: Path
) -> None:
    """Split over its own GPUs: between machines passes what is learned alone. One GPU has nobody to share it."""
    gang = Gang(tmp_path, ground, gpus, followers, sharded=True).start(hosts)
    assert gang.codes() == (0, 0), gang.words()
    assert gang.first.losses() == whole.losses()
    assert files_of(gang.first.folder / "output") == files_of(whole.folder / "output")
    first, second = (process.output for process in gang.processes)
    assert ("training: the base model's 1 layers are split over 2 GPUs of each machine" in first) == (gpus == 2)
    assert second == "training: takes part as machine 1 of 2, which machine 0 speaks for\n"
    assert not gang.left()


def test_who_is_lost_on_a_further_machine_ends_all(
    hosts: tuple[Host, Host], followers: str, ground: tuple[str, Path], tmp_path: Path
) -> None:
    gang = Gang(tmp_path, ground, 2, followers, fault="3 2 kill", sharded=True, steps=LONG).start(hosts)
    assert gang.codes() == (1, -signal.SIGKILL), gang.words()
    why = "rank 3 of 4, on machine 1, was killed (SIGKILL)"
    first, second = (process.output.splitlines()[-1] for process in gang.processes)
    assert second == f"error: {why}: all processes of the training end"
    assert first == f"error: connection closed by machine 1: {why}: all processes of the training end"
    assert not gang.left()


def test_a_stop_is_saved_and_another_number_of_gpus_goes_on(
    alone: dict[str, OnGpus], bases: dict[str, tuple[str, Path]], tmp_path: Path
) -> None:
    """What is saved is what is trained: whoever goes on splits the base as it likes, or not at all."""
    found = course(tmp_path, bases, "lora", 2, 3, 1).run(stops=(2, 4))
    assert_same(found, alone["lora"])


def test_a_model_without_a_row_of_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="sharded: this model has no row of layers"):
        layers_of(nn.Sequential(nn.Linear(2, 2)).requires_grad_(False))
