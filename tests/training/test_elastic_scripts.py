"""A user's own script on any number of processes, which change, die and leave: the same bytes. What would break that is
told in words."""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from allpass import training
from allpass.training.elastic import NotExact, Training, sameness, script, train
from tests.training.forking import CLIENT, forks
from tests.training.scripts import REPOSITORY

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]
SCRIPT = Path(__file__).with_name("elastic_script.py")


@dataclass(frozen=True)
class Ended:
    """How a script ended, and what it has left."""

    code: int
    said: str
    files: dict[str, str]
    metrics: str


@pytest.fixture(scope="module", autouse=True)
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which processes are forked from one that has loaded torch, and the Python that does so."""
    folder = tmp_path_factory.mktemp("forks")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join(CLIENT)} "$@"\n')
    python.chmod(0o700)
    with forks("tests.training.forked_scripts", folder) as path:
        _FORKED.update(FORKS=path, FORKED_PYTHON=str(python))
        yield _FORKED
    _FORKED.clear()


_FORKED: dict[str, str] = {}


def run(folder: Path, *, python: str | None = None, **environment: str) -> Ended:
    """`python`: which one, in place of that which forks."""
    folder.mkdir(parents=True, exist_ok=True)
    path = f"{REPOSITORY}:{REPOSITORY / 'sdk'}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}
    done = subprocess.run(
        [python or _FORKED["FORKED_PYTHON"], environment.pop("SCRIPT", str(SCRIPT))],
        cwd=folder,
        env={**kept, **_FORKED, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return Ended(done.returncode, done.stdout + done.stderr, files_of(folder), metrics_of(folder))


def files_of(folder: Path) -> dict[str, str]:
    """Hashes of results and of the newest checkpoint."""
    newest = sorted((folder / "allpass-checkpoints").glob("step-*"))[-1:]
    found = [file for place in (folder / "allpass-output", *newest) for file in place.glob("*") if file.is_file()]
    return {f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in found}


def metrics_of(folder: Path) -> str:
    """What was reported of steps, without what was told of the processes."""
    file = folder / "allpass-checkpoints" / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    return "\n".join(line for line in lines if '"loss"' in line and '"checkpoint"' not in line)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """By one process."""
    ended = run(tmp_path_factory.mktemp("alone") / "one")
    assert ended.code == 0, ended.said
    assert len(ended.files) == 3
    assert ended.metrics.count('"grad_norm"') == 12
    return ended


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_any_number_of_processes_leaves_the_same_bytes(alone: Ended, tmp_path: Path, processes: int) -> None:
    """Seven parts on two, three and four: none of them divides the parts. Dropout, Python's random numbers, clipping, a
    schedule, and a weight that most parts have no gradient of. The script speaks once, whoever runs it."""
    ended = run(tmp_path / "many", PROCESSES=str(processes))
    assert ended.code == 0, ended.said
    assert (ended.files, ended.metrics) == (alone.files, alone.metrics)
    assert f"training: begins on {processes} GPUs" in ended.said
    assert [ended.said.count(words) for words in ("a line of the script's own", "written")] == [1, 1]


def test_processes_that_have_nothing_in_common_leave_them_too(alone: Ended, tmp_path: Path) -> None:
    """Not forked from one: each has its own order of sets, too."""
    ended = run(tmp_path / "two", python=sys.executable, PROCESSES="2")
    assert ended.code == 0, ended.said
    assert (ended.files, ended.metrics) == (alone.files, alone.metrics)


def test_the_others_say_nothing_and_begin_wherever_the_script_has_gone(tmp_path: Path) -> None:
    """A number that the script reports by itself is reported once; a relative name of the script is found again."""
    folder = tmp_path / "gone"
    ended = run(folder, PROCESSES="2", FAULT="elsewhere", SCRIPT=os.path.relpath(SCRIPT, folder))
    assert ended.code == 0, ended.said
    told = (folder / "allpass-checkpoints" / "metrics.jsonl").read_text()
    assert told.count('"started"') == 1
    assert "begins on 2 GPUs" in ended.said


def test_processes_come_and_go_between_steps(alone: Ended, tmp_path: Path) -> None:
    """From one to three, to two others, and to one."""
    file = tmp_path / "gpus.json"
    file.write_text('["0"]')
    ended = run(
        tmp_path / "changing",
        STEPS="60", PART_S="0.02", CHANGES="2:0,1,2 30:0,2 50:0", ALLPASS_GPUS_FILE=str(file),
    )  # fmt: skip
    assert ended.code == 0, ended.said
    undisturbed = run(tmp_path / "undisturbed", STEPS="60")
    assert (ended.files, ended.metrics) == (undisturbed.files, undisturbed.metrics)
    assert "on 3 GPUs, after 1" in ended.said
    assert "on 2 GPUs, after 3" in ended.said
    told = (tmp_path / "changing" / "allpass-checkpoints" / "metrics.jsonl").read_text()
    assert '"gpus": {"used": ["0", "1", "2"]' in told


def test_a_process_that_is_killed_costs_the_step_that_was_being_taken(alone: Ended, tmp_path: Path) -> None:
    ended = run(tmp_path / "killed", PROCESSES="3", FAULT="kill")
    assert ended.code == 0, ended.said
    assert (ended.files, ended.metrics) == (alone.files, alone.metrics)
    assert "was killed (SIGKILL): those that are left take its step again" in ended.said


def test_a_stop_is_saved_and_gone_on_with_by_another_number(alone: Ended, tmp_path: Path) -> None:
    """All leave with the first one; three go on from what two have saved."""
    folder = tmp_path / "stopped"
    first = run(folder, PROCESSES="2", STOP_AT="5")
    assert first.code == 75, first.said
    (saved,) = (folder / "allpass-checkpoints").glob("step-*")
    second = run(folder, PROCESSES="3", ALLPASS_RESUME_DIR=str(saved))
    assert second.code == 0, second.said
    assert "training: goes on with step 6 on 3 GPUs" in second.said
    assert (second.files, second.metrics) == (alone.files, alone.metrics)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("batch-norm", "loss(part) changes 1.num_batches_tracked"),
        ("order", "parts(step) has to depend on the step alone"),
        ("count", "7 parts, norm None"),
        ("frozen", "the processes have built different models"),
        ("raise", "rank 1 of 2: KeyError: 'no such column'"),
        ("shape", "not a tensor of 5 numbers"),
    ],
)
def test_what_would_make_it_another_training_ends_it_with_a_word(tmp_path: Path, fault: str, words: str) -> None:
    """At the first step, and with nothing saved that somebody could go on from."""
    ended = run(tmp_path / "broken", PROCESSES="2", FAULT=fault)
    assert ended.code == 1, ended.said
    assert words in ended.said
    assert ended.files == {}


def test_a_single_process_is_told_of_statistics_as_well(tmp_path: Path) -> None:
    """Not only on the day on which it is given a second GPU."""
    ended = run(tmp_path / "broken", FAULT="batch-norm")
    assert ended.code == 1
    assert "NotExact" in ended.said


# What is built


def _made(**changes: object) -> Training:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = {"steps": 1, "parts": lambda step: [step], "loss": lambda part: model(torch.ones(2)).sum(), **changes}
    return Training(told.pop("model", model), told.pop("optimizer", optimizer), **told)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda device: None, TypeError, "elastic.Training, not NoneType"),
        (lambda device: _made(steps=0), ValueError, "steps=0"),
        (lambda device: _made(steps=True), ValueError, "steps=True"),
        (lambda device: _made(model=torch.nn.Linear(2, 1)), ValueError, "weights that are not the model's"),
        (lambda device: _made(model=torch.nn.Linear(2, 1).requires_grad_(False)), ValueError, "no weight"),
        (lambda device: _made(parts=lambda step: []), ValueError, r"parts\(1\) is empty"),
        (lambda device: _made(loss=lambda part: 1.0), TypeError, "not float"),
        (lambda device: _made(loss=lambda part: torch.ones(())), TypeError, "depends on the weights"),
    ],
)
def test_what_is_no_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: object, error: type[Exception], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        train(build)  # type: ignore[arg-type]


def test_one_of_several_processes_that_others_have_started_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would train the whole by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="without torchrun, and a job of it without --nodes"):
        train(lambda device: _made())


def test_more_gpus_than_can_take_part_are_not_left_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"at most 8 GPUs can take part .* not 16"):
        train(lambda device: _made(), processes=16)


def test_a_second_training_of_one_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script, "_has_trained", False)
    monkeypatch.setattr(training, "_session", None)
    stops = signal.getsignal(signal.SIGTERM)
    try:
        train(lambda device: _made())
        with pytest.raises(RuntimeError, match="was called before"):
            train(lambda device: _made())
    finally:
        signal.signal(signal.SIGTERM, stops)


# What has to be alike


def test_parts_are_told_apart_by_what_is_in_them() -> None:
    some = [{"ids": torch.tensor([1, 2]), "name": "a", "weights": [0.5]}]
    same = [{"ids": torch.tensor([1, 2]), "name": "a", "weights": [0.5]}]
    assert sameness.of_parts(some) == sameness.of_parts(same)
    others = (
        [{"ids": torch.tensor([2, 1]), "name": "a", "weights": [0.5]}],
        [{"ids": torch.tensor([1, 2], dtype=torch.int32), "name": "a", "weights": [0.5]}],
        [{"ids": torch.tensor([1, 2]), "name": "b", "weights": [0.5]}],
        [{"ids": torch.tensor([1, 2]), "name": "a", "weights": [0.5, 0.5]}],
        [],
    )
    assert len({sameness.of_parts(one) for one in (some, *others)}) == 6
    assert sameness.of_parts([object()]) == sameness.of_parts([object()]), "of what cannot be seen, its kind"
    assert sameness.of_parts([{object(): 1}]) == sameness.of_parts([{object(): 1}])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.arange(3), np.arange(3) + 1),
        (np.array(["a", "b"]), np.array(["b", "a"])),
        (np.float32(1), np.float32(2)),
        (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.tensor(True), torch.tensor(False)),
        (torch.tensor([1 + 2j]), torch.tensor([2 + 1j])),
        (b"ab", b"ba"),
        ((1, 12), (11, 2)),
    ],
)
def test_whatever_rows_are_made_of_is_looked_at(one: object, other: object) -> None:
    assert sameness.of_parts([one]) == sameness.of_parts([one])
    assert sameness.of_parts([one]) != sameness.of_parts([other])


@pytest.mark.parametrize("odd", [np.array([object(), None]), torch.eye(2).to_sparse(), {1, 2}, torch.ones(0), range(3)])
def test_what_is_no_plain_value_is_no_error(odd: object) -> None:
    assert sameness.of_parts([odd]) == sameness.of_parts([odd])


def test_of_rows_without_end_a_part_is_looked_at() -> None:
    """More than 64 MiB of them would cost more than they tell."""
    large = torch.zeros(80 * 1024 * 1024, dtype=torch.uint8)
    other = large.clone()
    other[-1] = 1
    assert sameness.of_parts([large]) == sameness.of_parts([other])
    other[0] = 1
    assert sameness.of_parts([large]) != sameness.of_parts([other])


def test_buffers_that_are_written_to_are_named() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    model.register_buffer("cache", torch.zeros(1), persistent=False)
    names = sameness.saved_buffers(model)
    assert sorted(names) == ["0.num_batches_tracked", "0.running_mean", "0.running_var"]
    before = sameness.changes_of(model, names)
    model.eval()(torch.ones(3, 2))
    model.cache = torch.zeros(9)
    assert sameness.changed(before, sameness.changes_of(model, names)) == []
    model.train()(torch.ones(3, 2))
    assert "0.num_batches_tracked" in sameness.changed(before, sameness.changes_of(model, names))
    now = sameness.changes_of(model, names)
    model[0].running_mean = torch.ones(2)  # another tensor in its place
    assert "0.running_mean" in sameness.changed(now, sameness.changes_of(model, names))


def test_weights_that_are_not_trained_are_compared() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2).requires_grad_(False), torch.nn.Linear(2, 1))
    before = sameness.of_fixed(model)
    with torch.no_grad():
        model[1].weight.add_(1.0)
    assert sameness.of_fixed(model) == before
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert sameness.of_fixed(model) != before


def test_not_exact_is_an_error_of_the_script() -> None:
    assert issubclass(NotExact, ValueError)
