"""One job's task: its rows, encoded, and what the model is asked with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from allpass.recipe.encoded import Limit, refuse_losses
from allpass.recipe.encoding import Example
from allpass.recipe.settings import Recipe
from workers.trainer.as_read import as_read
from workers.trainer.batches import Batch, join, join_pairs, pad, pad_pairs
from workers.trainer.chunks import Divided, divide
from workers.trainer.cutting import Rows, as_drawn, by_length, evenly, joined, pairs_by_length, pairs_evenly
from workers.trainer.loss import Loss, answers_loss, label_loss, log_probabilities, next_token_loss
from workers.trainer.preference import ReferenceModel, preference_loss
from workers.trainer.rows import Data
from workers.trainer.stream import RowStream
from workers.trainer.telling_apart import takes, tells_apart

if TYPE_CHECKING:
    from workers.trainer.model import Prepared

_UNDIVIDED = (
    "this model gives other numbers where its loss is computed by chunks of tokens, so it is computed of all at once, "
    "which takes more memory than was predicted"
)


@dataclass(frozen=True)
class TrainingTask:
    """`stream`: the training rows, by step. `held_out`: the sequences of rows that are never trained on, in order.
    `joins_rows`: whether there are several in a line, which the model tells apart. `by_chunks`: whether logits of no
    more than some tokens exist at once. `remarks`: what its owner should know."""

    recipe: Recipe
    stream: RowStream
    held_out: tuple[Example, ...]
    labels: tuple[str, ...]
    loss: Callable[[Any, Batch], Loss]
    padding_id: int
    device: Any
    joins_rows: bool = False
    by_chunks: bool = False
    remarks: tuple[str, ...] = ()

    def check_course(self, data: Mapping[str, Any]) -> None:
        """Raises ValueError where a checkpoint's `data` is of another task, or of a course whose steps this machine
        would compute in another way: what comes out is to be the same, or not to be at all."""
        learns_pairs = data.get("learns_pairs", False)  # not of older versions, which did not know of them
        if learns_pairs != self.recipe.learns_pairs:
            its, own = ("pairs of answers" if one else "other rows" for one in (learns_pairs, not learns_pairs))
            raise ValueError(
                f"from_checkpoint: the checkpoint is of a training on {its}, and this one is on {own}: to go on from "
                "what was learned there, name its adapter (adapter=...)"
            )
        joined = data.get("joins_rows", False)
        if joined != self.joins_rows:
            now, then = (("tells" if one else "does not tell") for one in (self.joins_rows, joined))
            raise ValueError(
                f"packing: on this machine the model {now} joined rows apart, and where this training began it {then}: "
                "its versions of torch and transformers are not those; have the job go on with those, or begin it "
                "again with packing=False"
            )
        by_chunks = data.get("by_chunks", False)
        if by_chunks != self.by_chunks:
            now, then = ("by chunks" if one else "of all tokens at once" for one in (self.by_chunks, by_chunks))
            raise ValueError(
                f"loss: on this machine the model's loss is computed {now}, and where this training began it was "
                f"{then}: its versions of torch and transformers are not those; have the job go on with those, or "
                "begin it again"
            )

    def micro_batches(self, step: int) -> list[Batch]:
        """The batches of a step."""
        return [self.batch(rows) for rows in self.stream.micro_batches(step)]

    def tokens(self, step: int) -> int:
        """How many tokens a step reads."""
        return sum(len(one.ids) for one in self.stream.rows(step))

    def cut_as(self, recipe: Recipe) -> TrainingTask:
        """The same task, its steps cut as this recipe says."""
        return replace(self, recipe=recipe, stream=self.stream.cut_into(recipe.rows_at_once))

    @property
    def held_out_at_once(self) -> int:
        """No gradients are kept of them, so twice as many are taken."""
        return 2 * self.recipe.rows_at_once

    def held_out_batches(self, at_once: int | None = None) -> Iterator[Batch]:
        """All held-out rows; fewer at once where memory has run out."""
        return map(self.batch, self.held_out_parts(at_once or self.held_out_at_once))

    def held_out_parts(self, at_once: int) -> list[Rows]:
        """The rows of these batches."""
        return _cut(self.recipe, joins_rows=False)(list(self.held_out), at_once)

    def batch(self, rows: Sequence[Example]) -> Batch:
        """These rows as they go through the model at once."""
        where: dict[str, Any] = {"padding_id": self.padding_id, "device": self.device}
        if self.recipe.learns_pairs:
            return join_pairs(joined(rows), rows, **where) if self.joins_rows else pad_pairs(rows, **where)
        if self.joins_rows:
            return join(joined(rows), **where)
        return pad(rows, labelled=not self.recipe.is_causal, **where)


def load(data: Data, recipe: Recipe, prepared: Prepared) -> TrainingTask:
    """Raises ValueError where no row, or too few of them, have anything to learn within what is read of each."""
    limit = Limit.of(recipe.sequence_length, prepared.model.config.to_dict())
    train, held_out = as_read(data, prepared, limit)
    refuse_losses(train, "training", limit)
    joins_rows, divided = _looked_at(recipe, prepared)
    cut = _cut(recipe, joins_rows=joins_rows)
    undivided = (_UNDIVIDED,) if recipe.takes_chunks and divided is None else ()
    return TrainingTask(
        recipe=recipe,
        stream=RowStream(
            train.rows, batch_size=recipe.batch_size, rows_at_once=recipe.rows_at_once, seed=recipe.seed, cut=cut
        ),
        held_out=tuple(one for row in held_out.rows for one in row),
        labels=data.labels,
        loss=_loss(recipe, prepared, divided),
        padding_id=prepared.padding_id,
        device=prepared.device,
        joins_rows=joins_rows,
        by_chunks=divided is not None,
        remarks=(*train.told("training", limit), *held_out.told("held-out", limit), *undivided),
    )


def _looked_at(recipe: Recipe, prepared: Prepared) -> tuple[bool, Divided | None]:
    """Whether the model tells joined rows apart, and how its loss is computed by chunks."""

    def look() -> tuple[bool, Divided | None]:
        joins_rows = recipe.packs_rows and tells_apart(prepared)
        return joins_rows, divide(prepared) if recipe.takes_chunks else None

    if prepared.split is None:
        return look()
    with torch.no_grad():
        return prepared.ask(look)


def _loss(recipe: Recipe, prepared: Prepared, divided: Divided | None) -> Callable[[Any, Batch], Loss]:
    """What the model is asked."""
    if not recipe.is_causal:
        return label_loss
    keeps = takes(prepared, "logits_to_keep")
    if recipe.learns_pairs:
        reference = ReferenceModel(prepared.model, has_own_adapter=recipe.adapter is not None)
        asked = partial(log_probabilities, takes_logits_to_keep=keeps) if divided is None else divided.log_probabilities
        return preference_loss(reference, recipe.beta, asked)
    if divided is not None:
        return divided.loss
    return answers_loss if recipe.asks_answers_alone and keeps else next_token_loss


def _cut(recipe: Recipe, *, joins_rows: bool) -> Callable[[Rows, int], list[Rows]]:
    """How a step of this recipe is cut."""
    if recipe.learns_pairs:
        return pairs_evenly if joins_rows else pairs_by_length
    if joins_rows:
        return evenly
    return by_length if recipe.sorts_rows else as_drawn
