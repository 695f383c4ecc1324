"""Exact numbers of parameters, by part of the model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from app.core.memory.architecture import Architecture
from app.core.memory.families import Matrix, matrices


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many parameters each part has. A head tied to the embedding has none of its own."""

    embedding: int
    layer_matrices: int
    layer_vectors: int
    layers: int
    head: int
    head_vectors: int
    last_norm: int

    @property
    def layer(self) -> int:
        """One layer."""
        return self.layer_matrices + self.layer_vectors

    @property
    def total(self) -> int:
        """The model as it is trained: with its language, classification or image head."""
        return self.embedding + self.layers * self.layer + self.last_norm + self.head + self.head_vectors


@lru_cache(maxsize=512)
def parameters_of(model: Architecture) -> Parameters:
    """Counted from the shape alone."""
    form, size = model.form, model.sizes()
    own = matrices(form)
    weights = sum(elements(matrix, size) for matrix in own)
    biases = sum(round(matrix.parts * size[matrix.out]) for matrix in own if matrix.bias)
    if form.mixture:
        weights += model.experts * 3 * model.hidden * model.intermediate
    norm = model.hidden * (2 if form.norm == "layer" else 1)
    vectors = biases + form.norms * norm + (2 * model.head_dim if form.qk_norm else 0)
    head, head_vectors = _head(model)
    return Parameters(
        embedding=_embedding(model),
        layer_matrices=weights,
        layer_vectors=vectors,
        layers=model.layers,
        head=head,
        head_vectors=head_vectors,
        last_norm=norm if form.final_norm else 0,
    )


def elements(matrix: Matrix, size: dict[str, int]) -> int:
    """Values in one matrix of a layer."""
    return round(matrix.parts * size[matrix.into] * size[matrix.out])


def _embedding(model: Architecture) -> int:
    h, form = model.hidden, model.form
    if form.head == "image":
        patches = (model.image // model.patch) ** 2
        return model.channels * model.patch**2 * h + h + h + (patches + 1) * h
    rows = model.vocab + (model.positions if form.learned_positions else 0)
    if form.style != "post":
        return rows * h
    typed = 0 if form.head == "distilbert" else model.types
    return (rows + typed) * h + 2 * h


def _head(model: Architecture) -> tuple[int, int]:
    h, n, kind = model.hidden, model.labels, model.form.head
    if kind in {"lm", "lm_bias"}:
        return (0 if model.tied else h * model.vocab), (model.vocab if kind == "lm_bias" else 0)
    if kind == "image":
        return h * n, n
    return h * h + h * n, h + n


@lru_cache(maxsize=1024)
def adapter_parameters(model: Architecture, rank: int, targets: frozenset[str]) -> int:
    """What LoRA of this rank adds on the matrices of these names (`lm_head` may be one)."""
    size = model.sizes()
    per_layer = sum(
        rank * (size[m.into] + round(m.parts * size[m.out])) for m in matrices(model.form) if m.name in targets
    )
    return model.layers * per_layer + (rank * (model.hidden + model.vocab) if "lm_head" in targets else 0)
