"""A script with W&B goes on with its run where its job does. Offline: each machine writes a file of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import SCRIPTS, Done, python_of, run
from tests.training import test_unaware_trainer as unaware
from tests.training.scripts import Machine

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
LOOP = SCRIPTS / "tracked.py"


def tracked(folder: Path, resume: Path | None = None, **parameters: Any) -> tuple[Machine, Done]:
    environ = {**OFFLINE, **parameters.pop("environ", {})}
    return run("wandb", LOOP, folder, resume, environ=environ, tracker="wandb", **parameters)


def histories(machine: Machine) -> dict[str, list[dict[str, Any]]]:
    """By the ids of the runs that the machine has begun."""
    found = {}
    for file in sorted(machine.folder.glob("wandb/offline-run-*/run-*.wandb")):
        command = [python_of("wandb"), str(SCRIPTS / "wandb_history.py"), str(file)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[file.stem.removeprefix("run-")] = [json.loads(line) for line in printed.splitlines()]
    return found


def ids_of(done: Done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("began ")]


def test_a_moved_job_goes_on_with_its_run(tmp_path: Path) -> None:
    """One id, and each step once."""
    first, done = tracked(tmp_path / "first", stop_at=3)
    assert done.returncode == 75, done.stderr
    second, done = tracked(tmp_path / "second", first.announced()[-1])
    (name,) = ids_of(done)
    assert name.startswith("job_test-")
    before, after = histories(first), histories(second)
    assert before.keys() == after.keys() == {name}
    assert [(line["_step"], line["loss"]) for line in before[name] + after[name]] == [
        (step, 1.0 / step) for step in range(1, 7)
    ]


def test_a_trainer_that_reports_to_it_goes_on_with_its_run(tmp_path: Path) -> None:
    given: dict[str, Any] = {"steps": 6, "arguments": {"report_to": "wandb"}, "environ": OFFLINE}
    first, done = run("wandb", unaware.SCRIPT, tmp_path / "first", **given, stop_at=3)
    assert done.returncode == 75, done.stderr
    second, done = run("wandb", unaware.SCRIPT, tmp_path / "second", first.announced()[-1], **given)
    assert done.returncode == 0, done.stderr
    before, after = histories(first), histories(second)
    (name,) = before.keys() | after.keys()
    logged = [line["train/global_step"] for line in before[name] + after[name] if "train/loss" in line]
    assert logged == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "own",
    [
        {"given": {"id": "mine"}},
        {"environ": {"WANDB_RUN_ID": "mine"}},
        {"given": {"settings": {"run_id": "mine"}}},
    ],
)
def test_a_run_that_the_script_names_stays_that_one(tmp_path: Path, own: dict[str, Any]) -> None:
    assert ids_of(tracked(tmp_path / "run", **own)[1]) == ["mine"]


def test_each_run_of_a_script_is_its_own_after_a_move(tmp_path: Path) -> None:
    """Told apart by their names and settings; of two that have the same ones, the second begins anew, and the log says
    so."""
    first = ids_of(tracked(tmp_path / "first", names=["a", "b"])[1])
    assert len(set(first)) == 2
    assert ids_of(tracked(tmp_path / "second", names=["b", "a"])[1]) == first[::-1]
    other = ids_of(tracked(tmp_path / "other", names=["a"], settings={"fold": 2})[1])
    assert other[0] not in first
    _, done = tracked(tmp_path / "same", names=["a", "a"])
    again = ids_of(done)
    assert again[0] == first[0]
    assert not again[1].startswith("job_test")
    assert done.stderr.count("several wandb runs of one name") == 1


def test_another_jobs_run_is_another_one(tmp_path: Path) -> None:
    """As each member of a sweep is."""
    one = ids_of(tracked(tmp_path / "one")[1])
    two = ids_of(tracked(tmp_path / "two", environ={"ALLPASS_JOB_ID": "job_other"})[1])
    assert one != two
    assert two[0].startswith("job_other-")


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    assert not ids_of(tracked(tmp_path / "run", environ={"ALLPASS_HOOKS": "off"})[1])[0].startswith("job_")


def test_where_nothing_can_be_written_the_script_has_its_run(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("a file, and no folder")
    environ = {"ALLPASS_METRICS_FILE": str(tmp_path / "metrics" / "lines")}
    _, done = run("wandb", SCRIPTS / "begins_alone.py", tmp_path / "run", environ={**OFFLINE, **environ})
    assert len(ids_of(done)) == 1
    assert "does not go on after a move, the hook failed" in done.stderr


def test_a_setting_that_changed_with_the_machine_ends_nothing(tmp_path: Path) -> None:
    """A resumed run has the settings of its first part; the library would raise for another folder."""
    script = tmp_path / "script.py"
    script.write_text(
        "import wandb\n"
        "from allpass.hooks.wandb_runs import _let_settings_change\n"
        "run = wandb.init(config={'folder': 'one'})\n"
        "try:\n    run.config.folder = 'two'\nexcept wandb.Error:\n    print('began raises')\n"
        "_let_settings_change(run.config)\n"
        "run.config.update({'folder': 'two'})\n"
        "print('began', run.config.folder)\n"
    )
    assert ids_of(run("wandb", script, tmp_path / "run", environ=OFFLINE)[1]) == ["raises", "two"]
