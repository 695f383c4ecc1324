"""The loop of one job: steps, evaluations, checkpoints, and what is left at the end."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allpass.recipe.libraries import installed
from allpass.recipe.settings import Recipe
from allpass.training.elastic import handing_over
from allpass.training.elastic.ranks import Join, Ranks, alone
from allpass.training.elastic.together import TakesSteps
from allpass.training.session import Session
from allpass.training.torch_checkpoints import Checkpoints
from workers.trainer import export, learned, model, pushing, sharding, tasks
from workers.trainer.apart import begin_again, pair_in, state_in
from workers.trainer.best import BestWeights
from workers.trainer.evaluation import evaluate, measured
from workers.trainer.model import Prepared
from workers.trainer.progress import Progress
from workers.trainer.rows import Data
from workers.trainer.split_checkpoints import SplitCheckpoints, put_together
from workers.trainer.stepping import Stepping
from workers.trainer.tasks import TrainingTask
from workers.trainer.tracking import Tracking
from workers.trainer.updating import Update
from workers.trainer.watching import FolderWatch

_FIRST_ONLY = frozenset({"best", "watch"})  # of the state of a loop: what no step depends on


class Diverged(ArithmeticError):
    """The loss is no number any more."""


class Loop(TakesSteps):
    """Trains from where its session says until the target, or the last step. The only part that reports, saves and
    leaves (SystemExit with code 75, when a stop was asked for and is saved). `join`: how it comes to the processes that
    share the parts of each step, at the start and whenever they change; all but the first only take steps."""

    def __init__(
        self,
        recipe: Recipe,
        prepared: Prepared,
        task: TrainingTask,
        update: Update,
        session: Session,
        join: Join = alone,
    ) -> None:
        self._steps = Stepping(recipe, prepared, task, update, session)
        super().__init__(join, prepared.device)
        self._prepared = prepared
        self._update = update
        self._session = session
        self._checkpoints: Checkpoints | SplitCheckpoints = (
            Checkpoints(prepared.model, session=session, alone=True, **update.parts)
            if prepared.split is None
            else SplitCheckpoints(prepared.model, session, update.parts, lambda: self.ranks)
        )
        self._whole: Mapping[str, Any] | None = None  # at the end, where each process has a share
        self._progress = Progress(recipe)
        self._best = BestWeights(prepared.model, session.checkpoint_dir)
        self._told: dict[str, float] = {}  # of the newest step
        self._tokens = 0
        self._tracking = Tracking(recipe, session)
        watched = None if self._is_split else session.watch_dir  # one process cannot ask the model by itself
        self._watching = FolderWatch(watched, task, prepared, session)
        self._rows = task.stream.count
        self._closed: int | None = None  # the newest step after which all was done that is due then
        self.last_step = recipe.total_steps(self._rows)

    @property
    def _is_split(self) -> bool:
        return self._prepared.split is not None

    @property
    def _keeps(self) -> bool:
        """Whether this process has something of each checkpoint."""
        return self.ranks.is_first or self._is_split

    @property
    def _recipe(self) -> Recipe:
        return self._steps.recipe

    @property
    def _task(self) -> TrainingTask:
        return self._steps.task

    @property
    def ranks(self) -> Ranks:
        """Also of whoever takes its parts."""
        return self._steps.ranks

    @ranks.setter
    def ranks(self, ranks: Ranks) -> None:
        self._steps.ranks = ranks

    def run(self) -> None:
        """Raises Diverged."""
        is_left = True
        try:
            self._run()
            is_left = False
        finally:
            self._tracking.close(is_left=is_left)

    def _run(self) -> None:
        step = self.take_all(self._begin())
        if not self.ranks.is_first:
            return
        if not self._is_split:
            self._checkpoints.save(step, data=self._state(), metrics=self._told)  # for whoever begins with it
        self._finish(step)

    def _begin(self) -> int:
        """The step that was taken last, by the session; what it does not say comes with the first process."""
        self.join()
        step = 0
        if self._keeps:
            self._steps.tell_layout(total_steps=self.last_step)
            step = self._closed = self._resume()
        if self.ranks.is_first:
            if step:
                self._track(step)  # the machine before may have left without a word of it
            self._watching.look(step)
        return self.begin_after(step)

    def _changed(self) -> None:
        self._steps.tell_layout()

    def _is_over(self, step: int) -> bool:
        return self._progress.ended is not None or step >= self.last_step

    def _drop(self) -> None:
        self._update.drop()

    def _hand_over(self, step: int) -> int:
        """All that a step depends on, as the first process has it."""
        if self.ranks.count == 1:
            return step
        own = {name: value for name, value in self._state().items() if name not in _FIRST_ONLY}
        if self._is_split:  # each has read its shares itself
            with self.ranks.losing():
                step, told = self.ranks.of_first((step, own))
            self._steps.cut_as_told(told["cut"])
            return step
        step, told = handing_over.share(self.ranks, step, own, self._prepared.model, self._update.parts)
        if not self.ranks.is_first:
            self._steps.cut_as_told(told["cut"])
            self._take_over(told)
        return step

    def _close(self, step: int) -> None:
        """What is due after a step, once."""
        self._evaluate(step)
        if self._keeps and step != self._closed:
            self._checkpoints.after_step(step, data=self._state(), metrics=self._told)
        self._closed = step
        if self._is_split and self._is_over(step):
            self._end_together(step)

    def _end_together(self, step: int) -> None:
        """What the first process cannot do by itself when the others have gone."""
        self._checkpoints.save(step, data=self._state(), metrics=self._told)
        self._best.put_back()
        self._whole = put_together(self._prepared.model, self._session.checkpoint_dir, self.ranks)

    def _resume(self) -> int:
        found = self._session.resume()
        step = 0
        if found is not None and found.learned:
            learned.begin_with(found.path, self._prepared.model, self._task.labels)
        elif found is not None and pair_in(found.path):
            step = self._leave_pair(found.path)
        elif found is not None:
            step = self._restore()
        if step == 0:
            held_out = len(self._task.held_out) // self._recipe.sequences_per_row
            kind = "pairs" if self._recipe.learns_pairs else "rows"
            print(f"training: {self._rows} {kind}, {held_out} held out, {self.last_step} steps", flush=True)
            for remark in self._task.remarks:
                print(f"training: {remark}", flush=True)
        else:
            print(f"training: goes on with step {step + 1} of {self.last_step}", flush=True)
        if self.ranks.count > 1:
            parts = f"{self._recipe.accumulation} parts of {self._recipe.rows_at_once}"
            print(f"training: on {self.ranks.count} GPUs, which share the {parts} rows of a step", flush=True)
        return step

    def _restore(self) -> int:
        state = self._checkpoints.resume()
        if state is None:
            return 0
        self._take_over(state.data)
        return state.step

    def _leave_pair(self, folder: Path) -> int:
        """It was trained with another job, and goes on by itself from its best state there."""
        self._session.saved_step = None  # of the pair's course, which is not gone on with
        state = state_in(folder, self._session.job_id)
        if state is None:
            return 0
        self._take_over(state)
        step = self._progress.step
        begin_again(self._prepared.model, state["best"], step, self._update, self._recipe.seed)
        return step

    def _take_over(self, data: Mapping[str, Any]) -> None:
        self._task.check_course(data)
        self._told = data["told"]
        self._tokens = data.get("tokens", 0)  # of older versions
        self._progress.restore(data["progress"])
        if self._keeps:
            self._best.restore(data["best"])
        if "watch" in data:
            self._watching.restore(data["watch"])

    def _state(self) -> dict[str, Any]:
        """Where the loop is; the rows of a step need no position."""
        return {
            "told": dict(self._told),
            "tokens": self._tokens,
            "labels": list(self._task.labels),
            "joins_rows": self._task.joins_rows,
            "by_chunks": self._task.by_chunks,
            "edition": self._recipe.edition,
            "learns_pairs": self._recipe.learns_pairs,
            "numbers": self._recipe.numbers,
            "cut": self._recipe.cut,
            "progress": self._progress.state(),
            "best": self._best.state(),
            "watch": self._watching.state(),
        }

    def _take(self, step: int) -> None:
        """One step over all its micro-batches."""
        total, counted, sums = self._steps.gather(step, self._told.get("grad_norm"))
        if not math.isfinite(total):
            raise Diverged(f"the loss of step {step} is {total}: try a lower learning_rate than {self._recipe.rate:g}")
        learning_rate = self._update.learning_rate
        with self.ranks.losing() if self._is_split else contextlib.nullcontext():
            norm = self._update.apply()
        self._tokens += self._task.tokens(step)
        self._told = {
            "loss": total / counted,
            **{name: value / counted for name, value in sums.items()},
            "grad_norm": norm,
            "learning_rate": learning_rate,
            "tokens": self._tokens,
        }
        self._session.report(step, **self._told)
        self._track(step)

    def _track(self, step: int) -> None:
        """A step that is to be measured is whole when it was."""
        is_whole = not (self._task.held_out and self._is_due(step))
        self._tracking.report(step, self._told, is_whole=is_whole)

    def _is_due(self, step: int) -> bool:
        return self._recipe.evaluates_at(step, self._rows) and self._progress.evaluated_step != step

    def _evaluate(self, step: int) -> None:
        """If it is due and not done. A stop that is asked for meanwhile is served first: the next machine evaluates."""
        if step == 0 or not self._is_due(step):
            return
        if self._task.held_out:
            self._measure(step)
        self._watching.look(step)

    def _measure(self, step: int) -> None:
        found = evaluate(self._task, self._prepared, gives_up=self._session.stop_requested, ranks=self.ranks)
        if found is None:
            return
        if self._progress.add(step, found) and self._keeps:
            self._best.keep()
        self._told = {**self._told, **found}
        self._session.report(step, **self._told)
        self._track(step)
        print(measured(step, self._told["loss"], found), flush=True)

    def _finish(self, step: int) -> None:
        progress = self._progress
        if progress.ended is not None:
            print(f"training: ended at step {step}: {progress.ended}", flush=True)
        if self._whole is None:
            self._best.put_back()
        summary = {
            "recipe": self._recipe.parameters(),
            "labels": list(self._task.labels),
            "last_step": step,
            "best_step": progress.step or step,
            "metrics": progress.metrics or self._told,
            "ended_early": progress.ended if step < self.last_step else None,
            "tokens": self._tokens,
        }
        folder = self._session.output_dir()
        export.write(folder, self._recipe, self._prepared, summary, self._whole)
        print(f"training: wrote the state of step {summary['best_step']}", flush=True)
        if self._recipe.push_to is not None:
            pushing.push(folder, self._recipe.push_to)


def train(recipe: Recipe, data: Data, session: Session, join: Join = alone) -> None:
    """All of one job, or the part of one of its processes. Raises Diverged, ValueError for what this machine or model
    cannot do; OSError; RankFailed where another process cannot go on."""
    session.tell(libraries=installed())
    if recipe.push_to is not None:
        pushing.check(recipe.push_to)
    if recipe.sharded:
        prepared, join = sharding.prepare(recipe, data, session, join)
    else:
        prepared = model.prepare(recipe, data.labels, data.adapter)
    task = tasks.load(data, recipe, prepared)
    update = Update(recipe, prepared.model, recipe.total_steps(task.stream.count), prepared.device)
    Loop(recipe, prepared, task, update, session, join).run()
