"""The peak of a training step, before anything is rented.

Programs are compiled once for every kind of training (about 50 ms) and kept; a prediction after that is arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from app.core.memory.architecture import Architecture
from app.core.memory.block import Setting
from app.core.memory.program import Forms, PeakForms, compiled, leading
from app.core.memory.resident import Resident, resident_of
from app.core.memory.semantics import DEFAULT, Semantics
from app.core.memory.sharding import share_of
from app.core.memory.tape import Dims
from app.core.memory.training import Training
from app.errors import InvalidInput

_MOST_KEPT = 4096
LEAST_TOKENS, MOST_VALUES = 512, 1 << 25
"""Of a chunk in the built-in recipe's loss: tokens, and values of logits where that is more tokens. The recipe has the
same numbers (`allpass.recipe.chunks`)."""

_SPLIT_BY_TENSOR_PARALLEL = ("i", "q", "k", "f", "a", "kv")


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes on one GPU by phase, comparable with `torch.cuda.max_memory_allocated()`; `allocated` is the largest."""

    resident: int
    forward: int
    backward: int
    optimizer: int

    @property
    def allocated(self) -> int:
        return max(self.forward, self.backward, self.optimizer)

    @property
    def phase(self) -> str:
        """Where the peak is: `forward`, `backward` or `optimizer`."""
        return max(("forward", "backward", "optimizer"), key=lambda name: int(getattr(self, name)))


def peak_of(model: Architecture, training: Training, semantics: Semantics = DEFAULT) -> Peak:
    """Predicts the allocated bytes of every phase.

    Raises InvalidInput that names the field of a configuration that cannot be.
    """
    if 0 < model.positions < training.sequence and model.form.style == "post":
        raise InvalidInput(
            f"sequence is {training.sequence}: the model has {model.positions} positions", param="sequence"
        )
    if semantics.unties and model.tied:
        model = replace(model, tied=False)
    ready, kept = _prepared(model, training, semantics)
    split = share_of(model, training, kept, semantics)
    forward, turn, backward = ready.largest(training, model)
    base = split.resident + semantics.workspace_bytes
    read = training.batch * model.pixels_bytes
    beside = base + split.gathered + read
    early, late = split.early_gradients, split.late_gradients
    return Peak(
        resident=round(base),
        forward=round(beside + split.ahead + early + forward),
        backward=round(beside + max(turn + early, backward + late + split.copies)),
        optimizer=round(base + split.gradients + split.step_temporary + read),
    )


@dataclass(frozen=True, slots=True)
class _Ready:
    """A program with the model's sizes put in: what is left depends on batch, sequence, rank and chunk alone."""

    products: tuple[Dims, ...]
    forward: Forms
    turn: Forms
    backward: Forms

    def largest(self, training: Training, model: Architecture) -> tuple[float, float, float]:
        """Bytes above what is resident: forward, turn, backward."""
        each = model.tokens(training.sequence)
        tokens = training.batch * each
        size = {
            "b": training.batch,
            "s": each,
            "t": tokens,
            "r": training.rank,
            "c": _chunk(tokens, training.loss, model.vocab, model.hidden),
        }
        values = np.array([math.prod([size[name] for name in names]) for names in self.products], dtype=np.float64)
        return _top(self.forward, values), _top(self.turn, values), _top(self.backward, values)


_ready: dict[object, _Ready] = {}
_kept: dict[object, tuple[_Ready, Resident]] = {}


def _top(forms: Forms, values: Forms) -> float:
    return float((forms @ values).max())


def _prepared(model: Architecture, training: Training, semantics: Semantics) -> tuple[_Ready, Resident]:
    """Compiled once for each model and kind of training: batch, sequence and number of GPUs are not in the keys."""
    kind = (
        model,
        training.tensor_parallel,
        training.method,
        training.precision,
        training.autocast,
        training.checkpointing,
        training.attention,
        training.attention == "eager" and training.batch > 1,
        training.loss,
        training.targets,
        training.adapter_dropout > 0,
        training.narrow_adapters,
        training.gathers_weights,
        training.keeps_master,
        training.quantisation.startswith("nf4"),
        training.gradients_gather,
        semantics,
    )
    exact = (kind, training.rank, training.optimizer, training.quantisation, training.saves)
    kept = _kept.get(exact)
    if kept is not None:
        return kept
    setting = Setting(model, training, semantics, training.names_of(model))
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
        _ready.clear()
    ready = _ready.get(kind)
    if ready is None:
        ready = _ready[kind] = _filled(model, training.tensor_parallel, compiled(setting))
    both = _kept[exact] = (ready, resident_of(setting))
    return both


def _filled(model: Architecture, tensor_parallel: int, program: PeakForms) -> _Ready:
    size = model.sizes()
    for name in _SPLIT_BY_TENSOR_PARALLEL:
        size[name] = -(-size[name] // tensor_parallel)
    rests = [tuple(name for name in dims if name not in size) for dims in program.slots]
    products = tuple(sorted(set(rests)))
    known = [math.prod([size[name] for name in dims if name in size]) for dims in program.slots]
    into = np.zeros((len(known), len(products)))
    for row, (rest, value) in enumerate(zip(rests, known, strict=True)):
        into[row, products.index(rest)] = value
    deeper = model.layers - program.layers
    whole = np.vstack((into, deeper * into))
    return _Ready(products, *(leading(forms @ whole) for forms in (program.forward, program.turn, program.backward)))


def _chunk(tokens: int, loss: str, vocab: int, hidden: int) -> int:
    """Tokens whose logits are there at once: 8 parts, as many as the recipe says, or as make a part no larger than the
    hidden states."""
    if loss == "recomputed":
        return min(tokens, max(LEAST_TOKENS, MOST_VALUES // vocab)) if vocab else tokens
    return -(-tokens // (8 if loss == "chunked" else max(1, -(-vocab // hidden))))
