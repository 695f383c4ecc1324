"""The gradients of one step, from all its micro-batches, by whichever processes share them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from allpass.recipe.settings import Recipe
from allpass.training.elastic.ranks import ALONE, RankFailed, Ranks
from allpass.training.elastic.summing import Summing
from allpass.training.session import Session
from allpass.training.torch_state import capture_rng, restore_rng
from workers.trainer import model
from workers.trainer.batches import Batch
from workers.trainer.chance import seed_part
from workers.trainer.loss import Loss
from workers.trainer.making_room import left_open, smaller, words
from workers.trainer.model import Prepared
from workers.trainer.tasks import TrainingTask
from workers.trainer.updating import Update


class StepSums(NamedTuple):
    """A step's loss, summed; what that counts; and what else it tells, summed."""

    total: float
    counted: int
    sums: Counter[str]


class _Learned(NamedTuple):
    """What came of a micro-batch: its loss, what else it tells, which parameters have a gradient of it; and the norm of
    the step before in the process that took it."""

    total: float
    told: Mapping[str, float]
    present: tuple[bool, ...]
    norm_before: str


class Stepping:
    """How the steps of a training are cut into parts, and who takes them. The cut changes where memory runs out and
    nobody has chosen it; `ranks` change with the processes that there are."""

    ranks: Ranks = ALONE

    def __init__(
        self, recipe: Recipe, prepared: Prepared, task: TrainingTask, update: Update, session: Session
    ) -> None:
        self.recipe = recipe
        self.task = task
        self._prepared = prepared
        self._update = update
        self._session = session
        self._is_open = left_open(session)

    def gather(self, step: int, norm_before: float | None) -> StepSums:
        """The gradients of a step are in its parameters. Where memory runs out it is begun again in smaller parts, if
        nobody has chosen otherwise. Raises RankFailed, and PeerLost with the step not taken."""
        drawn = capture_rng() if self._is_open else {}
        while True:
            try:
                return self._gather(step, repr(norm_before))
            except torch.cuda.OutOfMemoryError:
                if self.ranks.is_in_step or (recipe := smaller(self.recipe, self._is_open)) is None:
                    raise
            # Here, where nothing refers any more to what the error left on the GPU.
            print(
                f"training: the GPU's memory ran out in step {step} with {words(self.recipe)}: it goes on with "
                f"{words(recipe)}, and sums may differ in their last bits",
                flush=True,
            )
            self._cut_as(recipe)
            restore_rng(drawn)

    def tell_layout(self, **more: Any) -> None:
        """How steps are cut now, and shared, for what is learned from them."""
        count, found = self.ranks.count, self.recipe.layout
        if count > 1:
            sharding = "fsdp" if self.ranks.is_in_step else "ddp"
            found |= {"sharding": sharding, "accumulation": math.ceil(self.recipe.accumulation / count)}
        self._session.describe(**found, **more)

    def cut_as_told(self, cut: Mapping[str, Any]) -> None:
        """As the first process does by now."""
        if cut != self.recipe.cut:
            self._cut_as(replace(self.recipe, **cut))

    def _cut_as(self, recipe: Recipe) -> None:
        if recipe.checkpointing and not self.recipe.checkpointing:
            model.recompute(self._prepared.model)
        self.recipe, self.task = recipe, self.task.cut_as(recipe)
        self._update.drop()
        model.free_memory()
        self.tell_layout()

    def _gather(self, step: int, norm_before: str) -> StepSums:
        """Each micro-batch's loss is divided by what the whole step counts."""
        batches = self.task.micro_batches(step)
        counted = max(1, sum(batch.counted for batch in batches))
        summing = self._summing()
        total = 0.0
        sums: Counter[str] = Counter()

        def learn(number: int, batch: Batch) -> _Learned:
            seed_part(self.recipe, step, number)
            summing.begin(number, len(batches))
            with self._prepared.computing():
                loss = self._loss(batch)
            self._update.add(loss.total / counted)
            told = {name: float(value) for name, value in loss.told.items()}
            present = summing.present()
            summing.keep()
            return _Learned(float(loss.total.detach()), told, present, norm_before)

        def go_along(number: int, batch: Batch) -> None:
            summing.begin(number, len(batches))
            with self._prepared.computing():
                self._update.add(self._loss(batch).total)
            summing.leave_out()

        for learned_now in self.ranks.each(batches, learn, summing.at_once, go_along):
            _check_same(step, learned_now)
            summing.add([one.present for one in learned_now])
            for one in learned_now:
                total += one.total
                sums.update(one.told)
        summing.finish()
        seed_part(self.recipe, step, len(batches))  # as it is saved, whoever took the last part
        return StepSums(total, counted, sums)

    def _loss(self, batch: Batch) -> Loss:
        return self._prepared.ask(lambda: self.task.loss(self._prepared.model, batch))

    def _summing(self) -> Summing:
        if self._prepared.split is not None:
            return self._prepared.split.summing(self._update.parameters, self.ranks.count)
        return self.ranks.summing(self._update.parameters)


def _check_same(step: int, learned_now: Sequence[_Learned]) -> None:
    """Processes that hold other weights by now would train on with gradients of neither."""
    norms = {one.norm_before for one in learned_now}
    if len(norms) > 1:
        raise RankFailed(
            f"before step {step} the processes do not have the same weights any more: the norms of their last "
            f"gradients are {', '.join(sorted(norms))}; are their GPUs alike?"
        )
