"""What a task asks of the model: a short vector, by which tasks are compared before they are trained together.

As Task2Vec does (Achille et al. 2019), a task is described by the diagonal of the Fisher information of what is
trained, at the base model, on a bounded sample. It is the empirical one, with the rows' own answers: what is asked, not
only what is read, is to be compared. Tasks that pull the same weights in opposite directions have the same diagonal, so
a sketch is kept, too, of the first step that Adam would take: the mean gradient over the root of the diagonal.

Only these numbers leave the machine: at most `MOST_BLOCKS` means over many weights and rows, and `SKETCH` signed sums
of all weights. Neither holds a row, a token or a weight.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from allpass.recipe.encoding import Example
from allpass.recipe.settings import Recipe
from workers.trainer.model import Prepared
from workers.trainer.rows import Data
from workers.trainer.tasks import TrainingTask

ROWS = 64
MOST_BLOCKS = 1024
SKETCH = 512
_SPARE = 4
RANK = 8  # of the adapter that all tasks are profiled with: only equal shapes compare
_SEED = 1
_TINY = 1e-9


@dataclass(frozen=True)
class Embedding:
    """`fisher`: block means of the diagonal, zero or more, mean one over all. `pull`: the sketch of the first
    step, of length one. `rows`: how many were used, `tokens`: what they cost."""

    fisher: tuple[float, ...]
    pull: tuple[float, ...]
    rows: int
    tokens: int


def profiling(recipe: Recipe) -> Recipe:
    """The recipe that a task's model is prepared with: the same adapter, drawn from the same seed, for every task."""
    method = "qlora" if recipe.method == "qlora" else "lora"
    alike = replace(recipe, method=method, lora_rank=RANK, lora_alpha=RANK, lora_dropout=0.0, seed=_SEED, threads=1)
    return replace(alike, edition=1)  # what older versions have told of tasks is compared with it


def bounded(data: Data) -> Data:
    """As many rows as a profile may look at, and some to spare, for rows with nothing to predict."""
    order = list(range(len(data.train)))
    random.Random("allpass profile rows").shuffle(order)  # noqa: S311 - a sample of rows is no secret
    return replace(
        data, train=tuple(data.train[number] for number in order[: _SPARE * ROWS]), held_out=(), encoded=None
    )


def embedding(
    task: TrainingTask,
    prepared: Prepared,
    *,
    rows: int = ROWS,
    seed: int = 0,
    between: Callable[[], None] = lambda: None,
) -> Embedding:
    """The same rows, model and seed give the same vector. One backward pass per row, at most `rows` of them, and
    `between` is called before each. Raises ValueError where gradients are no numbers.

    The adapter is drawn anew, from one seed for all tasks, whatever else was drawn before it: its second matrices are
    zero, so that only these have gradients, and theirs are the full weights' gradients seen through the first ones.
    """
    _draw(prepared.model)
    chosen = _sample(task.stream.examples, rows, seed)
    trained = [(name, one) for name, one in sorted(prepared.model.named_parameters()) if "lora_B" in name]
    squares = [torch.zeros_like(one, dtype=torch.float64) for _, one in trained]
    sums = [torch.zeros_like(one, dtype=torch.float64) for _, one in trained]
    prepared.model.eval()
    for example in chosen:
        between()
        for number, gradient in enumerate(_gradients(task, prepared, example, [one for _, one in trained])):
            squares[number] += gradient**2
            sums[number] += gradient
    if not all(bool(one.isfinite().all()) for one in squares):
        raise ValueError("the gradients of some rows are no numbers: they cannot be compared")
    return Embedding(
        fisher=_blocks(squares),
        pull=_sketch([-one / (square.sqrt() + _TINY) for one, square in zip(sums, squares, strict=True)]),
        rows=len(chosen),
        tokens=sum(len(one.ids) for one in chosen),
    )


def _draw(model: Any) -> None:
    drawn = torch.Generator().manual_seed(_SEED)
    for name, one in sorted(model.named_parameters()):
        if "lora_A" in name:
            value = (2 * torch.rand(one.shape, generator=drawn) - 1) / math.sqrt(one.shape[1])
            one.data.copy_(value)


def _sample(examples: Sequence[Example], rows: int, seed: int) -> list[Example]:
    """Rows that have anything to predict, chosen by the seed."""
    known = [one for one in examples if one.counted]
    order = list(range(len(known)))
    random.Random(f"allpass profile {seed}").shuffle(order)  # noqa: S311 - a sample of rows is no secret
    return [known[number] for number in order[:rows]]


def _gradients(task: TrainingTask, prepared: Prepared, example: Example, trained: Sequence[Any]) -> list[Any]:
    batch = task.batch([example])
    with prepared.computing():
        loss = task.loss(prepared.model, batch).total / batch.counted
    return [one.detach().double() for one in torch.autograd.grad(loss, trained)]


def _blocks(squares: Sequence[Any]) -> tuple[float, ...]:
    """Means over neighbouring rows of each matrix: as many blocks of each as fit into the whole."""
    most = max(1, MOST_BLOCKS // max(1, len(squares)))
    means = [part.mean() for one in squares for part in one.mean(dim=1).tensor_split(min(most, one.shape[0]))]
    found = torch.stack(means).cpu()
    return tuple((found / found.mean().clamp_min(1e-300)).tolist())


def _sketch(sums: Sequence[Any]) -> tuple[float, ...]:
    """Each weight is added to one of `SKETCH` places under a sign, both drawn from one seed for all tasks: inner
    products of sketches are those of the gradients, but for noise of 1 / sqrt(SKETCH)."""
    found = torch.zeros(SKETCH, dtype=torch.float64)
    for one, (places, signs) in zip(sums, _hashes(sums), strict=True):
        found.index_add_(0, places, one.flatten().cpu() * signs)
    return tuple((found / found.norm().clamp_min(1e-300)).tolist())


def _hashes(sums: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    drawn = torch.Generator().manual_seed(_SEED)
    for one in sums:
        places = torch.randint(SKETCH, (one.numel(),), generator=drawn)
        signs = torch.randint(2, (one.numel(),), generator=drawn).double() * 2 - 1
        yield places, signs
