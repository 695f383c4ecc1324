"""Real trainings of the family's tasks with the built-in recipe: alone, in turn, side by side."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from allpass.recipe.settings import Recipe
from allpass.training.session import Session
from allpass.training.torch_state import trainable_weights
from workers.trainer import fisher, model, rows, tasks
from workers.trainer.in_turn import InTurn
from workers.trainer.joint import Joint
from workers.trainer.loop import Loop
from workers.trainer.model import Prepared
from workers.trainer.shared import Shared
from workers.trainer.side import Side
from workers.trainer.updating import Update


@dataclass(frozen=True)
class Course:
    """One job's training. `losses` by its steps; `looks`: (step, held-out loss, accuracy); `steps` to its target,
    interpolated between two looks, or its last where it was not `reached`."""

    losses: tuple[float, ...]
    looks: tuple[tuple[int, float, float], ...]
    steps: float
    reached: bool

    @property
    def final(self) -> float:
        """Held-out accuracy of the best state, which is what is exported."""
        return min((loss, accuracy) for _, loss, accuracy in self.looks)[1]


@dataclass
class Ground:
    """Where trainings run: `recipe` is every task's, `data` has a folder of rows for each."""

    recipe: Recipe
    data: dict[str, Path]
    _ended: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    def alone(self, name: str, seed: int) -> Course:
        """Normal fine-tuning. What came of it is kept for the tasks that start from it."""
        with _place() as place:
            shared, (side,) = self._sides(place, [name], seed)
            prepared = shared.prepared
            update = Update(side.recipe, prepared.model, side.last_step, prepared.device)
            Loop(side.recipe, prepared, side.task, update, side.session).run()
            weights = {key: value.detach().clone() for key, value in trainable_weights(prepared.model).items()}
            course = self._course(place, name)
            self._ended[name, seed] = {
                **side.state(), "step": len(course.losses), "left": "it was trained before", "best": weights,
            }  # fmt: skip
            return course

    def after(self, first: str, second: str, seed: int) -> Course:
        """The second's course, from what the first learned alone with the same seed."""
        with _place() as place:
            shared, sides = self._sides(place, [first, second], seed)
            sides[0].restore(self._ended[first, seed])
            InTurn(shared, sides, _session(place / "run")).run()
            return self._course(place, second)

    def together(self, first: str, second: str, seed: int) -> tuple[Course, Course, bool]:
        """Both courses, side by side, and whether the two were split."""
        with _place() as place:
            shared, sides = self._sides(place, [first, second], seed)
            why = Joint(shared, sides, _session(place / "run")).run()
            return self._course(place, first), self._course(place, second), why is not None

    def embedding(self, name: str, seed: int) -> fisher.Embedding:
        """Of the task, at the base model."""
        prepared, task = self._loaded(name, fisher.profiling(self.recipe))
        return fisher.embedding(task, prepared, seed=seed)

    def _sides(self, place: Path, names: Sequence[str], seed: int) -> tuple[Shared, list[Side]]:
        recipe = replace(self.recipe, seed=seed)
        prepared = model.prepare(recipe, ())
        shared = Shared(prepared, [()] * len(names), own_heads=False)
        sides = []
        for number, name in enumerate(names):
            task = tasks.load(rows.load(self.data[name]), recipe, prepared)
            sides.append(Side(name, recipe, task, _session(place / name), shared, number=number))
        return shared, sides

    def _loaded(self, name: str, recipe: Recipe) -> tuple[Prepared, tasks.TrainingTask]:
        prepared = model.prepare(recipe, ())
        return prepared, tasks.load(rows.load(self.data[name]), recipe, prepared)

    def _course(self, place: Path, name: str) -> Course:
        lines = [json.loads(line) for line in (place / name / "metrics.jsonl").read_text().splitlines()]
        losses = {one["step"]: one["loss"] for one in lines if "loss" in one and "checkpoint" not in one}
        looks = [(one["step"], one["eval_loss"], one["eval_accuracy"]) for one in lines if "eval_loss" in one]
        target = (self.recipe.target or {})["eval_loss"]
        return Course(tuple(losses.values()), tuple(looks), *_reached(looks, target, len(losses)))


def _reached(looks: Sequence[tuple[int, float, float]], target: float, last: int) -> tuple[float, bool]:
    before: tuple[int, float] | None = None
    for step, loss, _ in looks:
        if loss <= target:
            if before is None:
                return float(step), True
            share = (before[1] - target) / max(1e-12, before[1] - loss)
            return before[0] + share * (step - before[0]), True
        before = (step, loss)
    return float(last), False


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    """A folder for a run, whose talk is kept quiet: a benchmark has its own."""
    quiet = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        yield Path(folder)


def _session(place: Path) -> Session:
    return Session(
        {
            "ALLPASS_JOB_ID": place.name,
            "ALLPASS_CHECKPOINT_DIR": str(place / "checkpoints"),
            "ALLPASS_OUTPUT_DIR": str(place / "output"),
            "ALLPASS_METRICS_FILE": str(place / "metrics.jsonl"),
            "ALLPASS_CHECKPOINT_INTERVAL_S": "86400",
        }
    )
