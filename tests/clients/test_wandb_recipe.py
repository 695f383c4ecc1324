"""A fine-tuning without code tells its metrics to W&B: one run on all its machines, each step once, and nothing that
W&B does harms it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import REPOSITORY, SCRIPTS, Done, run
from tests.clients.wandb_server import KEY, KeptRun, serving
from tests.training import tiny
from tests.training.scripts import LIBRARY, Machine

LAST = 8
ROWS = [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(20)]


class Told:
    """Where a job's rows and its base model are, and its W&B."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = str(tiny.llama(folder / "base"))
        self.rows = tiny.write_rows(folder / "rows", "prompt", ROWS[:16], ROWS[16:])

    def part(
        self, name: str, url: str, resume: Path | None = None, *, key: str = KEY, command: str = "", **more: Any
    ) -> tuple[Machine, Done]:
        environ = {
            "PYTHONPATH": f"{REPOSITORY}:{LIBRARY}",
            "ROWS": str(self.rows),
            "TOLD_S": "3",
            "WANDB_BASE_URL": url,
            "WANDB_API_KEY": key,
        }
        parameters = {
            "model": self.model, "epochs": 4, "batch_size": 8, "precision": "fp32", "evaluate_every": 3,
            "wandb": {"project": "sums", "run": "ftjob-1", "name": "first", "tags": ["a", "b"]},
        }  # fmt: skip
        return run("wandb", SCRIPTS / "recipe.py", self.folder / name, resume, environ=environ, **parameters, **more)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(tmp_path_factory.mktemp("told"))


def place(told: Told, tmp_path: Path) -> Told:
    told.folder = tmp_path
    return told


def why(machine: Machine) -> list[str]:
    return [line["training"]["untracked"] for line in machine.lines() if "untracked" in line.get("training", {})]


def steps(kept: KeptRun) -> list[int]:
    return [line["_step"] for line in kept.lines]


def test_a_job_that_moves_tells_each_step_once_to_one_run(told: Told, tmp_path: Path) -> None:
    """Stopped as a step is reported whose measurement is due: the next machine measures, and tells that step whole."""
    with serving() as wandb:
        told = place(told, tmp_path)
        first, done = told.part("first", wandb.url, stop_at=3)
        assert done.returncode == 75, done.stderr
        second, done = told.part("second", wandb.url, first.announced()[-1], stop_at=5)
        assert done.returncode == 75, done.stderr
        third, done = told.part("third", wandb.url, second.announced()[-1])
        assert done.returncode == 0, done.stderr
    ((project, name), kept), *others = wandb.runs.items()
    assert (project, name, others) == ("sums", "ftjob-1", [])
    assert steps(kept) == list(range(1, LAST + 1))
    losses = {line["step"]: line["loss"] for one in (first, second, third) for line in one.lines() if "loss" in line}
    assert {line["_step"]: line["train_loss"] for line in kept.lines} == losses
    assert [line["_step"] for line in kept.lines if "valid_loss" in line] == [3, 6, 8]
    assert kept.told[0]["displayName"] == "first"
    assert kept.told[0]["tags"] == ["a", "b"]
    assert why(first) == why(second) == why(third) == []
    links = [line["training"]["link"] for line in first.lines() if "link" in line.get("training", {})]
    assert links == [{"name": "wandb", "url": f"{wandb.url}/team/sums/runs/ftjob-1"}]
    assert KEY not in done.stdout + done.stderr
    assert sorted(path.name for path in third.folder.iterdir() if "wandb" in path.name) == []


def test_steps_that_a_lost_machine_had_told_are_not_told_again(told: Told, tmp_path: Path) -> None:
    with serving() as wandb:
        told = place(told, tmp_path)
        first, _ = told.part("first", wandb.url, stop_at=2)
        _, done = told.part("lost", wandb.url, first.announced()[-1], dies_at=5)
        assert done.returncode == 1
        told.part("after", wandb.url, first.announced()[-1])
    (kept,) = wandb.runs.values()
    assert steps(kept) == list(range(1, LAST + 1))


@pytest.mark.parametrize("how", ["refuses", "away", "stalls", "no key"])
def test_a_tracker_that_does_not_take_it_harms_nothing_and_is_told_of_once(
    told: Told, tmp_path: Path, how: str
) -> None:
    with serving(refuses=how == "refuses", stalls=how == "stalls") as wandb:
        url = "http://127.0.0.1:9" if how == "away" else wandb.url
        machine, done = place(told, tmp_path).part("only", url, key="" if how == "no key" else KEY)
    assert done.returncode == 0, done.stderr
    assert len(machine.losses()) == LAST
    assert len(why(machine)) == 1, done.stdout
    assert KEY not in done.stdout + done.stderr + str(why(machine))
