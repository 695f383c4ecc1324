"""Runs two jobs as one in this process, whole or in parts that stop at chosen steps of the run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allpass.recipe.settings import Recipe
from allpass.training.session import EXIT_STOPPED, Session

if TYPE_CHECKING:
    from workers.trainer.pair import Pair
    from workers.trainer.side import Side

NAMES = ("one", "other")


class Told(Session):
    """A side's session. It counts what is reported of steps, and hears of stops with the run's."""

    on_step: Callable[[], None] = staticmethod(lambda: None)

    def report(self, step: int, **metrics: Any) -> None:
        super().report(step, **metrics)
        if "eval_loss" not in metrics:
            self.on_step()


@dataclass
class PairCourse:
    """Two jobs in `folder`, in `mode` (joint, in_turn), on `data` of each, with parameters of each; in as many parts
    as it is stopped. `change`: what a test does to the sides before they run."""

    folder: Path
    mode: str
    data: tuple[Path, Path]
    parameters: tuple[dict[str, Any], dict[str, Any]]
    change: Callable[[Pair], None] = lambda pair: None
    parts: list[Path] = field(default_factory=list)
    why: str | None = None
    sides: tuple[Side, Side] | None = None

    def run(self, stops: Sequence[int] = ()) -> PairCourse:
        """Each part resumes from the checkpoint of the one before, of which nothing else reaches it."""
        for stop_at in (*stops, 0):
            resume_from = self.parts[-1] / "run" / f"step-{stops[len(self.parts) - 1]:08d}" if self.parts else None
            self.parts.append(self.folder / f"part{len(self.parts)}")
            with exactly(), self._pair(resume_from, stop_at) as pair:
                self.sides = (pair.first, pair.second)
                try:
                    self.why = pair.run()
                except SystemExit as leaving:
                    assert leaving.code == EXIT_STOPPED
                    assert stop_at, "nobody asked it to stop"
                else:
                    assert not stop_at, "it was asked to stop"
        return self

    def points(self, name: str) -> dict[int, dict[str, float]]:
        """What was reported last of each step of a side, over all parts."""
        found: dict[int, dict[str, float]] = {}
        for part in self.parts:
            file = part / name / "metrics.jsonl"
            for line in file.read_text().splitlines() if file.exists() else ():
                told = json.loads(line)
                if "loss" in told and "checkpoint" not in told:
                    found[told.pop("step")] = told
        return found

    def output(self, name: str) -> Path:
        return self.parts[-1] / name / "output"

    def summary(self, name: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.output(name) / "training.json").read_text())
        return loaded

    def alone(self, name: str, place: Path, *, anew: bool = False) -> dict[str, Any]:
        """This side by itself in a fresh model, from the checkpoint that the pair left for it, if any: its summary."""
        from workers.trainer import model, rows, tasks
        from workers.trainer.loop import Loop
        from workers.trainer.updating import Update

        number = NAMES.index(name)
        recipe, data = Recipe.of(self.parameters[number]), rows.load(self.data[number])
        left = sorted((self.parts[-1] / name / "checkpoints").glob("step-*"))
        session = Session(environment(place, "own", left[0] if left and not anew else None))
        with exactly():
            prepared = model.prepare(recipe, data.labels)
            task = tasks.load(data, recipe, prepared)
            update = Update(recipe, prepared.model, recipe.total_steps(task.stream.count), prepared.device)
            Loop(recipe, prepared, task, update, session).run()
        summary: dict[str, Any] = json.loads((place / "own" / "output" / "training.json").read_text())
        return summary

    @contextmanager
    def _pair(self, resume_from: Path | None, stop_at: int) -> Iterator[Pair]:
        from workers.trainer import model, rows, tasks
        from workers.trainer.in_turn import InTurn
        from workers.trainer.joint import Joint
        from workers.trainer.shared import Shared
        from workers.trainer.side import Side

        recipes = [Recipe.of(one) for one in self.parameters]
        data = [rows.load(one) for one in self.data]
        prepared = model.prepare(recipes[0], data[0].labels)
        is_joint = self.mode == "joint"
        shared = Shared(prepared, [one.labels for one in data], own_heads=is_joint)
        run = Session(environment(self.parts[-1], "run", resume_from))
        sides = []
        for number, name in enumerate(NAMES):
            task = tasks.load(data[number], recipes[number], prepared)
            session = Told(environment(self.parts[-1], name))
            sides.append(Side(name, recipes[number], task, session, shared, number=number))
        pair: Pair = (Joint if is_joint else InTurn)(shared, sides, run)
        for side in sides:
            side.session.on_step = lambda: self._stop(pair, run, stop_at)
        self.change(pair)
        yield pair

    @staticmethod
    def _stop(pair: Pair, run: Session, stop_at: int) -> None:
        if stop_at and pair.step + 1 == stop_at:
            for session in (run, pair.first.session, pair.second.session):
                session.request_stop()


def environment(part: Path, name: str, resume_from: Path | None = None) -> dict[str, str]:
    place = part / name
    place.mkdir(parents=True, exist_ok=True)
    found = {
        "ALLPASS_JOB_ID": f"job_{name}",
        "ALLPASS_CHECKPOINT_DIR": str(place if name == "run" else place / "checkpoints"),
        "ALLPASS_OUTPUT_DIR": str(place / "output"),
        "ALLPASS_METRICS_FILE": str(place / "metrics.jsonl"),
        "ALLPASS_CHECKPOINT_INTERVAL_S": "3600",
    }
    return found if resume_from is None else {**found, "ALLPASS_RESUME_DIR": str(resume_from)}


@contextmanager
def exactly() -> Iterator[None]:
    """Other tests find torch as it was."""
    import torch  # not when tests are collected: it takes seconds

    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def poisoned(pair: Pair, name: str, step: int) -> None:
    """From its own `step` on, this side's loss is no number."""
    from workers.trainer.loss import Loss

    side = pair.first if name == NAMES[0] else pair.second
    healthy = side.task.loss

    def loss(model: Any, batch: Any) -> Loss:
        found = healthy(model, batch)
        return found if side.step + 1 < step or not model.training else Loss(found.total * float("nan"), found.hits)

    side.task = dataclasses.replace(side.task, loss=loss)
