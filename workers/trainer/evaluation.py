"""How well the model does on held-out rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from workers.trainer.model import Prepared
from workers.trainer.tasks import Task


def measured(step: int, loss: float, found: Mapping[str, float]) -> str:
    """The line of an evaluation in a job's log."""
    values = "  ".join(f"{name} {value:.4f}" for name, value in found.items())
    return f"step {step:5d}  loss {loss:.4f}  {values}"


def evaluate(
    task: Task, prepared: Prepared, *, gives_up: Callable[[], bool] = lambda: False
) -> dict[str, float] | None:
    """`eval_loss` (mean over all that counts) and `eval_accuracy` (share of right guesses: of tokens, of labels, or of
    which answer is the better one), and what else a task tells.

    Looks between batches whether to give up, and then returns None: it can be done again. Nothing random is used, and
    the model trains on as it was.
    """
    model: Any = prepared.model
    counted = 0
    total = 0.0
    hits = 0
    sums: Counter[str] = Counter()
    was_training = model.training
    model.eval()
    try:
        for batch in task.held_out_batches():
            if gives_up():
                return None
            with torch.no_grad(), prepared.computing():
                loss = task.loss(model, batch)
            total += float(loss.total)
            hits += int(loss.hits)
            sums.update({name: float(value) for name, value in loss.told.items()})
            counted += batch.counted
    finally:
        model.train(was_training)
    more = {f"eval_{name}": value / counted for name, value in sums.items()}
    return {"eval_loss": total / counted, "eval_accuracy": hits / counted, **more}
