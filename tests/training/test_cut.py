"""A step that nobody has cut is cut for the GPU at hand: the same comes out, a job keeps its cut, and memory that runs
out makes it smaller."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from allpass.recipe.settings import Recipe
from allpass.training.session import Session
from tests.training.recipes import Course
from tests.training.scripts import files_of
from workers.trainer import making_room, tasks
from workers.trainer.loss import answers_loss

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]
SUMS = [{"prompt": f"{number}+1=" + number * " and", "completion": str(number + 1)} for number in range(20)]
QUICK: dict[str, Any] = {
    "steps": 4, "evaluate_every": 2, "precision": "fp32", "batch_size": 12, "learning_rate": 5e-3, "lora_dropout": 0.0,
}  # fmt: skip
OPEN: dict[str, Any] = {"model": {"name": "any"}, "training": {"steps": 4}}


@dataclass
class Planned(Course):
    """Each part on a machine for which the service has filled in a cut: rows at once, and whether they are
    recomputed."""

    cuts: tuple[tuple[int, bool], ...] = ()
    template: dict[str, Any] = field(default_factory=lambda: OPEN)

    def _environment(self, place: Path, resume_from: Path | None) -> dict[str, str]:
        found = super()._environment(place, resume_from)
        micro, checkpointing = self.cuts[min(len(self.parts), len(self.cuts)) - 1]
        told = {**self.parameters, "micro_batch": micro, "checkpointing": checkpointing}
        (place / "parameters.json").write_text(json.dumps(told))
        (place / "template.json").write_text(json.dumps(self.template))
        return {**found, "ALLPASS_TEMPLATE_FILE": str(place / "template.json")}

    def layouts(self) -> list[tuple[int, bool]]:
        """What was told of each part, in order."""
        told = [line["training"] for line in self.lines() if "micro_batch" in line.get("training", {})]
        return [(one["micro_batch"], one["checkpointing"]) for one in told]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    from tests.training import tiny

    folder = tmp_path_factory.mktemp("ground")
    return tiny.llama(folder / "llama"), tiny.write_rows(folder / "sums", "prompt", SUMS[:16], SUMS[16:], edition=2)


def course(folder: Path, ground: tuple[str, Path], *cuts: tuple[int, bool], **more: Any) -> Planned:
    base, data = ground
    return Planned(folder, data, {"model": base, **QUICK, **more}, cuts=cuts)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_loss_does_not_depend_on_the_cut(ground: tuple[str, Path], method: str, tmp_path: Path) -> None:
    """All of a step at once, one row after the other, parts that are not alike, recomputed or not: but for rounding the
    same losses and metrics, at every step."""
    cuts = [(12, False), (5, False), (4, True), (1, True)]
    found = [
        course(tmp_path / str(number), ground, cut, method=method).run().points() for number, cut in enumerate(cuts)
    ]
    for other in found[1:]:
        for step, told in found[0].items():
            assert {name: pytest.approx(value, rel=1e-4) for name, value in told.items()} == other[step]


@pytest.mark.parametrize("planned", [(12, False), (4, True)])
def test_a_job_keeps_its_cut_on_a_gpu_that_holds_it(
    ground: tuple[str, Path], planned: tuple[int, bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planned is more at once, or the same: it ends bit for bit as if left alone."""
    whole = course(tmp_path / "whole", ground, (4, True)).run()
    moved = course(tmp_path / "moved", ground, (4, True), planned).run([2])
    assert moved.points() == whole.points()
    assert files_of(moved.output) == files_of(whole.output)
    assert moved.layouts() == [(4, True), (4, True)]
    assert ("goes on with 4 of 12 rows at once, activations recomputed, as it began" in capsys.readouterr().out) == (
        planned == (12, False)
    )


def test_a_gpu_that_does_not_hold_it_changes_it_with_a_word(
    ground: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And from there on it is kept as it is then."""
    moved = course(tmp_path / "moved", ground, (12, False), (2, True), (12, False)).run([1, 3])
    assert moved.layouts() == [(12, False), (2, True), (2, True)]
    told = "this GPU is not sure to hold 12 of 12 rows at once, with which this training began: it goes on with 2 of 12"
    assert capsys.readouterr().out.count(told) == 1
    assert max(moved.points()) == 4


def test_a_checkpoint_of_an_older_trainer_goes_on_as_it_is_told(ground: tuple[str, Path], tmp_path: Path) -> None:
    """It says nothing of a cut: it took what its parameters said, which are the job's still."""
    first = course(tmp_path / "first", ground, (3, False)).run([2])
    state = first.parts[0] / "checkpoints" / "step-00000002" / "training_state.json"
    told = json.loads(state.read_text())
    assert told["data"].pop("cut") == {"micro_batch": 3, "checkpointing": False}
    state.write_text(json.dumps(told))
    second = course(tmp_path / "second", ground, (3, False))
    second.environ = {"ALLPASS_RESUME_DIR": str(state.parent)}
    assert second.run().layouts() == [(3, False)]


@pytest.mark.parametrize(
    ("more", "template", "found"),
    [
        ({"batch_size": 8}, OPEN, (8, False)),
        ({}, {**OPEN, "training": {"micro_batch": 6}}, (6, True)),
    ],
)
def test_another_job_that_begins_with_its_checkpoint_is_cut_as_its_owner_says(
    ground: tuple[str, Path], more: dict[str, Any], template: dict[str, Any], found: tuple[int, bool], tmp_path: Path
) -> None:
    """What was begun in smaller or larger steps, or with other rows at once, decides nothing that was chosen since."""
    first = course(tmp_path / "first", ground, (12, False) if more else (4, True)).run([2])
    second = course(tmp_path / "second", ground, (found[0], False), **more)
    second.template = template
    second.environ = {"ALLPASS_RESUME_DIR": str(first.parts[0] / "checkpoints" / "step-00000002")}
    assert second.run().layouts() == [found]


class Small:
    """A GPU that holds so many rows at once, or so many when they are recomputed."""

    def __init__(self, patch: pytest.MonkeyPatch, plain: int, recomputed: int) -> None:
        computed = answers_loss

        def loss(model: Any, batch: Any) -> Any:
            rows = sum(int((line == 0).sum()) for line in batch.positions) if batch.positions is not None else 1
            holds = recomputed if getattr(model, "is_gradient_checkpointing", False) else plain
            if torch.is_grad_enabled() and min(rows, batch.counted) > holds:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return computed(model, batch)

        patch.setattr(tasks, "answers_loss", loss)


def test_where_memory_runs_out_the_step_is_taken_in_smaller_parts(
    ground: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what was random as it was: it ends bit for bit as if it had been cut so from the start, and the log says
    what happened."""
    more = {"lora_dropout": 0.3, "steps": 3}
    right = course(tmp_path / "right", ground, (3, False), **more).run()
    with monkeypatch.context() as patch:
        Small(patch, plain=3, recomputed=3)
        found = course(tmp_path / "found", ground, (12, False), **more).run()
    assert found.points() == right.points()
    assert found.layouts() == [(12, False), (6, False), (3, False)]
    told = "ran out in step 1 with 6 of 12 rows at once: it goes on with 3 of 12 rows at once, and sums may differ"
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("chosen", [{"micro_batch": 12, "checkpointing": False}, {"micro_batch": 12}])
def test_what_the_owner_chose_is_not_changed(
    ground: tuple[str, Path], chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows at once that were chosen stay, and run out of memory; what was left open beside them gives way."""
    Small(monkeypatch, plain=3, recomputed=100)
    job = course(tmp_path / "job", ground, (12, False))
    job.template = {**OPEN, "training": {**OPEN["training"], **chosen}}
    if len(chosen) == 2:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            job.run()
    else:
        assert job.run().layouts() == [(12, False), (12, True)]


def test_held_out_rows_are_looked_at_in_smaller_parts(
    ground: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory runs out there."""
    right = course(tmp_path / "right", ground, (2, False)).run()
    computed = answers_loss

    def loss(model: Any, batch: Any) -> Any:
        if not torch.is_grad_enabled() and (batch.positions == 0).sum() > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return computed(model, batch)

    monkeypatch.setattr(tasks, "answers_loss", loss)
    found = course(tmp_path / "found", ground, (2, False)).run()
    assert found.points() == {
        step: {name: pytest.approx(value, rel=1e-4) for name, value in told.items()}
        for step, told in right.points().items()
    }


def test_nothing_is_left_to_give_at_one_row_recomputed() -> None:
    """Halves that divide the batch, then recomputing, then the error."""
    recipe = Recipe(model="m", batch_size=10, micro_batch=10, checkpointing=False)
    found = []
    while recipe := making_room.smaller(recipe, {"micro_batch", "checkpointing"}):  # type: ignore[assignment]
        found.append((recipe.rows_at_once, recipe.checkpointing))
    assert found == [(5, False), (2, False), (1, False), (1, True)]
    assert making_room.left_open(Session({})) == frozenset()
