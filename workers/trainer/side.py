"""One job's part in a run of two: its steps, metrics, best state, tokens, and what it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from allpass.recipe.settings import Recipe
from allpass.training.session import Session
from allpass.training.torch_state import (
    capture_rng,
    load_weights,
    restore_rng,
    save_tree,
    trainable_weights,
    training_tree,
)
from workers.trainer import export
from workers.trainer.apart import parted, seed_all
from workers.trainer.best import BestWeights
from workers.trainer.evaluation import evaluate, measured
from workers.trainer.loop import Diverged
from workers.trainer.progress import Progress
from workers.trainer.shared import Shared
from workers.trainer.tasks import TrainingTask
from workers.trainer.updating import Update

_LAST = "its last step is taken"
_PLAIN = ("step", "tokens", "left", "told")


class Side:
    """`name` tells it in messages, `number` is its place in `shared`; `session` has its own metrics and outputs.

    `step` counts its own steps, `tokens` what they read (its share of the cost); `left` says why it takes part no
    longer, or is None. `say` writes a line of its log.
    """

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        task: TrainingTask,
        session: Session,
        shared: Shared,
        *,
        number: int,
        say: Callable[[str], None] = print,
    ) -> None:
        self.name = name
        self.recipe = recipe
        self.task = task
        self.session = session
        self.step = 0
        self.tokens = 0
        self.left: str | None = None
        self.told: dict[str, float] = {}  # of its newest step
        self.progress = Progress(recipe)
        self.rows = task.stream.count
        self.last_step = recipe.total_steps(self.rows)
        self.number = number
        self.say = say
        self._shared = shared
        self._best = BestWeights(shared.model, session.checkpoint_dir)

    @property
    def epochs(self) -> float:
        """How often its rows were seen."""
        return self.step / self.task.stream.steps_per_epoch

    def take(self, update: Update) -> None:
        """Its next step, with all of its batch. Raises Diverged before any weight is touched by what is no number."""
        step = self.step + 1
        batches = self.task.micro_batches(step)
        counted = max(1, sum(batch.counted for batch in batches))
        total = 0.0
        with self._shared.of(self.number) as model:
            for batch in batches:
                with self._shared.prepared.computing():
                    loss = self.task.loss(model, batch)
                update.add(loss.total / counted)
                total += float(loss.total.detach())
        if not math.isfinite(total):
            raise Diverged(f"the loss of {self.name} at its step {step} is {total}")
        learning_rate = update.learning_rate
        norm = update.apply()
        self.step = step
        self.tokens += self.task.tokens(step)
        self.told = {
            "loss": total / counted, "grad_norm": norm, "learning_rate": learning_rate, "tokens": self.tokens,
        }  # fmt: skip
        self.session.report(step, **self.told)

    @property
    def is_due(self) -> bool:
        """Whether its held-out rows are to be looked at now."""
        reached = self.step > 0 and self.recipe.evaluates_at(self.step, self.rows)
        return self.left is None and bool(self.task.held_out) and reached and self.progress.evaluated_step != self.step

    def look(self, *, may_give_up: bool = True) -> dict[str, float] | None:
        """Its held-out metrics now; None where a stop was asked for, or nothing is held out."""
        if not self.task.held_out:
            return None
        with self._shared.of(self.number):
            return evaluate(
                self.task,
                self._shared.prepared,
                gives_up=self.session.stop_requested if may_give_up else lambda: False,
            )

    def take_in(self, found: Mapping[str, float]) -> None:
        """Its own evaluation of its present step: keep what is best."""
        if self.progress.add(self.step, found):
            with self._shared.of(self.number):
                self._best.keep()
        self.told = {**self.told, **found}
        self.session.report(self.step, **self.told)
        self.say(measured(self.step, self.told["loss"], found))

    def end_if_due(self) -> bool:
        """It leaves at its target, without hope, or after its last step; and writes its outputs. Whether it left."""
        if self.left is not None or (self.progress.ended is None and self.step < self.last_step):
            return False
        self.left = self.progress.ended or _LAST
        if not self._best.state():
            with self._shared.of(self.number):
                self._best.keep()
        self.write()
        return True

    def write(self) -> None:
        """Its outputs, from its best state; the model is then as before."""
        progress = self.progress
        summary = {
            "recipe": self.recipe.parameters(),
            "labels": list(self.task.labels),
            "last_step": self.step,
            "best_step": progress.step or self.step,
            "metrics": progress.metrics or self.told,
            "ended_early": progress.ended if self.step < self.last_step else None,
            "tokens": self.tokens,
        }
        with self._shared.of(self.number) as model:
            now = {name: value.detach().clone() for name, value in trainable_weights(model).items()}
            self._best.put_back()
            export.write(self.session.output_dir(), self.recipe, self._shared.prepared, summary)
            load_weights(model, now)
        self.say(f"training: ended at step {self.step}: {self.left}; wrote the state of step {summary['best_step']}")

    def keep_last(self, device: Any) -> None:
        """Save where it ended as a checkpoint of its own, for whoever begins with it."""
        update = Update(self.recipe, self._shared.model, self.last_step, device)
        update.begin_at(self.step)
        self.save(self.step, update, self.loop_state())

    def put_best_back(self) -> None:
        """Give the model the best weights this side had."""
        with self._shared.of(self.number):
            self._best.put_back()

    def part(self, device: Any) -> None:
        """Write its best state as a checkpoint of its own, from which a `Loop` of it goes on with a new optimizer;
        the model is then as before. A side that was never evaluated has no such state, and begins anew.
        """
        step = self.progress.step
        if step == 0:
            return
        state = parted(self.progress.state())
        with self._shared.of(self.number) as model:
            now = {name: value.detach().clone() for name, value in trainable_weights(model).items()}
            random_now = capture_rng()
            self._best.put_back()
            self.start_alone(step, device, progress=state)
            load_weights(model, now)
            restore_rng(random_now)

    def start_alone(self, step: int, device: Any, *, progress: Mapping[str, Any] | None = None) -> Update:
        """Save the model as it is as this job's own checkpoint of `step`; the update that a `Loop` goes on with.

        What is random from here on follows from the job's seed, in this process as in any other.
        """
        with self._shared.of(self.number) as model:
            update = Update(self.recipe, model, self.last_step, device)
            update.begin_at(step)
            seed_all(self.recipe.seed + step)
            data = {
                "told": dict(self.progress.metrics),
                "progress": dict(progress or self.progress.state()),
                "best": self._best.state() if progress else {},
            }
            self.save(step, update, {**self.loop_state(), **data})
        return update

    def save(self, step: int, update: Update, data: Any) -> None:
        """A checkpoint as `Loop` reads it, of the model as it is."""
        with self._shared.of(self.number) as model:
            tree = training_tree(step=step, weights=trainable_weights(model), data=data, **update.parts)
            self.session.save(step, lambda folder: save_tree(folder, tree), {})

    def loop_state(self) -> dict[str, Any]:
        """What a `Loop` of this job has in its checkpoints."""
        return {
            "told": dict(self.told),
            "tokens": self.tokens,
            "labels": list(self.task.labels),
            "joins_rows": self.task.joins_rows,
            "by_chunks": self.task.by_chunks,
            "edition": self.recipe.edition,
            "numbers": self.recipe.numbers,
            "progress": self.progress.state(),
            "best": self._best.state(),
        }

    def state(self) -> dict[str, Any]:
        """All of it; tensors are the live ones."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        plain["joins_rows"], plain["by_chunks"] = self.task.joins_rows, self.task.by_chunks
        return {**plain, "progress": self.progress.state(), "best": self._best.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.task.check_course(state)
        for name in _PLAIN:
            setattr(self, name, state[name])
        self.progress.restore(state["progress"])
        self._best.restore(state["best"])
