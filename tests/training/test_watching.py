"""A job that leads in turn looks at the rows of the one that waits: bounded, apart from its own course, and told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from allpass.wire.agent import Watched
from tests.training.recipes import Course, StopsAt
from tests.training.scripts import files_of
from tests.training.test_pairs import COMMON, SUMS, VOTES

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
EPOCH = 3  # steps


@pytest.fixture(scope="module")
def lead(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The job that trains: its rows and parameters."""
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("lead")
    rows = tiny.write_rows(folder / "sums", "prompt", SUMS[:14], SUMS[14:])
    return rows, {"model": tiny.llama(folder / "llama"), **COMMON, "steps": 9, "evaluate_every": 2}


def waits(folder: Path, parameters: Mapping[str, Any], held_out: Any = SUMS[:9], **order: Any) -> dict[str, str]:
    """A job that waits, as the agent puts it there; what the lead then finds in its environment."""
    from tests.training import tiny

    made = tiny.write_rows(folder / "watched" / "job_b", "prompt", (), held_out)
    (made / "watch.json").write_text(json.dumps({"job_id": "job_b", "parameters": dict(parameters), **order}))
    return {"ALLPASS_WATCH_DIR": str(folder / "watched")}


def told(course: Course) -> dict[int, Watched]:
    found = {line["step"]: line["training"] for line in course.lines() if "watch" in line.get("training", {})}
    return {step: Watched.model_validate(facts["watch"]) for step, facts in found.items()}


def test_what_helps_is_told_and_changes_nothing(lead: Any, tmp_path: Path) -> None:
    """Its rows get easier with each step of the lead's, whose own course is that of a job that nobody waits for."""
    data, parameters = lead
    watching = Course(tmp_path / "run", data, parameters, environ=waits(tmp_path, parameters)).run()
    assert [(step, one.fruitless_epochs) for step, one in told(watching).items()] == [
        (2, 0), (4, 0), (6, 0), (8, 0), (9, 0),
    ]  # fmt: skip
    assert told(watching)[9].epochs == 9 / EPOCH
    alone = Course(tmp_path / "alone", data, parameters).run()
    assert watching.points() == alone.points()
    assert files_of(watching.output) == files_of(alone.output)


def test_what_does_not_help_counts_its_epochs_across_stops(lead: Any, tmp_path: Path) -> None:
    """A lead that learns nothing brings nothing; each machine goes on with what was seen at first."""
    data, parameters = lead
    still = {**parameters, "learning_rate": 1e-30}
    environ = waits(tmp_path, still)
    moved = Course(tmp_path / "run", data, still, environ=environ).run([3, 4])
    assert all(one.fruitless_epochs == one.epochs for one in told(moved).values())
    assert told(moved)[9].fruitless_epochs == 9 / EPOCH
    assert told(moved)[9] == told(Course(tmp_path / "whole", data, still, environ=environ).run())[9]


def test_one_that_comes_later_is_counted_from_then_on(lead: Any, tmp_path: Path) -> None:
    """The first look at its rows is what has to be undercut."""
    data, parameters = lead
    still = {**parameters, "learning_rate": 1e-30}
    environ = {"ALLPASS_WATCH_DIR": str(tmp_path / "watched")}
    run = Course(tmp_path / "run", data, still, environ=environ)

    class Comes(StopsAt):
        """The rows come as step 3 is reported."""

        def report(self, step: int, **metrics: Any) -> None:
            super().report(step, **metrics)
            if step == 3 and not (tmp_path / "watched").exists():
                waits(tmp_path, still)

    run.session = Comes
    found = told(run.run())
    assert list(found) == [6, 8, 9]
    assert found[9].epochs == found[9].fruitless_epochs == (9 - 4) / EPOCH


@pytest.mark.parametrize("broken", ["other labels", "no rows", "no order", "not JSON", "unknown setting", "too long"])
def test_what_cannot_be_looked_at_is_left_alone(lead: Any, tmp_path: Path, broken: str) -> None:
    """The lead trains to its end, and says nothing of it."""
    data, parameters = lead
    environ = waits(tmp_path, parameters, () if broken == "no rows" else SUMS[:3])
    made = tmp_path / "watched" / "job_b"
    if broken == "other labels":
        (made / "recipe.json").write_text(json.dumps({"shape": "labelled", "labels": ["no", "yes"]}))
        (made / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in VOTES))
    elif broken == "no order":
        (made / "watch.json").unlink()
    elif broken == "not JSON":
        (made / "held_out.jsonl").write_text("{")
    elif broken == "unknown setting":
        (made / "watch.json").write_text(json.dumps({"job_id": "job_b", "parameters": {"modle": "m"}}))
    elif broken == "too long":
        (made / "held_out.jsonl").write_text(json.dumps({"prompt": "x" * 2000, "completion": "y"}))
    run = Course(tmp_path / "run", data, parameters, environ=environ).run()
    assert told(run) == {}
    assert len(run.points()) == 9
