"""How well the model does on held-out rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from allpass.training.elastic.ranks import ALONE, Ranks
from workers.trainer.cutting import Rows
from workers.trainer.model import Prepared, free_memory
from workers.trainer.tasks import TrainingTask


class _Seen(NamedTuple):
    """What came of a batch."""

    total: float
    hits: int
    told: Mapping[str, float]
    counted: int


def measured(step: int, loss: float, found: Mapping[str, float]) -> str:
    """The line of an evaluation in a job's log."""
    values = "  ".join(f"{name} {value:.4f}" for name, value in found.items())
    return f"step {step:5d}  loss {loss:.4f}  {values}"


def evaluate(
    task: TrainingTask,
    prepared: Prepared,
    *,
    gives_up: Callable[[], bool] = lambda: False,
    ranks: Ranks = ALONE,
) -> dict[str, float] | None:
    """`eval_loss` (mean over all that counts) and `eval_accuracy` (share of right guesses: of tokens, of labels, or of
    which answer is the better one), and what else a task tells.

    Looks between batches whether to give up, and then returns None: it can be done again. Nothing random is used, and
    the model trains on as it was. Where memory runs out, it begins again with half as many rows at once. Several
    `ranks` take turns, and all of them get what one would.
    """
    model: Any = prepared.model
    was_training = model.training
    model.eval()
    at_once = task.held_out_at_once
    try:
        while True:
            try:
                return _evaluate(task, prepared, at_once, gives_up, ranks)
            except torch.cuda.OutOfMemoryError:
                if at_once == 1 or ranks.is_in_step:
                    raise
            at_once //= 2
            free_memory()
    finally:
        model.train(was_training)


def _evaluate(
    task: TrainingTask, prepared: Prepared, at_once: int, gives_up: Callable[[], bool], ranks: Ranks
) -> dict[str, float] | None:
    model = prepared.model
    counted = 0
    total = 0.0
    hits = 0
    sums: Counter[str] = Counter()

    def look(number: int, rows: Rows) -> _Seen | None:
        if not ranks.is_in_step and gives_up():  # the others would wait for it in the middle of their part
            return None
        batch = task.batch(rows)
        with torch.no_grad(), prepared.computing():
            loss = prepared.ask(lambda: task.loss(model, batch))
        told = {name: float(value) for name, value in loss.told.items()}
        return _Seen(float(loss.total), int(loss.hits), told, batch.counted)

    for seen in ranks.each(task.held_out_parts(at_once), look):
        for one in seen:
            if one is None:
                return None
            total += one.total
            hits += one.hits
            sums.update(one.told)
            counted += one.counted
    more = {f"eval_{name}": value / counted for name, value in sums.items()}
    return {"eval_loss": total / counted, "eval_accuracy": hits / counted, **more}
