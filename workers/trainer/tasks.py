"""One job's task: its rows, encoded, and what the model is asked with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allpass.recipe.encoded import Limit, encode, refuse_losses
from allpass.recipe.encoding import Encoder, Example
from allpass.recipe.settings import Recipe
from workers.trainer.batches import Batch, collate
from workers.trainer.loss import Loss, label_loss, next_token_loss
from workers.trainer.rows import Data
from workers.trainer.stream import Stream

if TYPE_CHECKING:
    from workers.trainer.model import Prepared


@dataclass(frozen=True)
class Task:
    """`stream`: the training rows, by step. `held_out`: the sequences of rows that are never trained on, in order.
    `remarks`: what its owner should know of its rows."""

    recipe: Recipe
    stream: Stream
    held_out: tuple[Example, ...]
    labels: tuple[str, ...]
    loss: Callable[[Any, Batch], Loss]
    padding_id: int
    device: Any
    remarks: tuple[str, ...] = ()

    def micro_batches(self, step: int) -> list[Batch]:
        """The batches of a step."""
        return [self.batch(rows) for rows in self.stream.micro_batches(step)]

    def tokens(self, step: int) -> int:
        """How many tokens a step reads."""
        return sum(len(one.ids) for one in self.stream.rows(step))

    def held_out_batches(self) -> Iterator[Batch]:
        """All held-out rows. No gradients are kept of them, so twice as many are taken at once."""
        size = 2 * self.recipe.rows_at_once
        for first in range(0, len(self.held_out), size):
            yield self.batch(self.held_out[first : first + size])

    def batch(self, rows: Sequence[Example]) -> Batch:
        labelled = self.recipe.task == "classification"
        return collate(rows, padding_id=self.padding_id, device=self.device, labelled=labelled)


def load(data: Data, recipe: Recipe, prepared: Prepared) -> Task:
    """Raises ValueError where no row, or too few of them, have anything to learn within what is read of each."""
    limit = Limit.of(recipe.sequence_length, prepared.model.config.to_dict())
    encoder = Encoder(prepared.tokenizer, data.shape, data.labels, limit.tokens)
    train = encode(encoder, data.train, "training", limit)
    held_out = encode(encoder, data.held_out, "held-out", limit)
    refuse_losses(train, "training", limit)
    return Task(
        recipe=recipe,
        stream=Stream(train.rows, batch_size=recipe.batch_size, rows_at_once=recipe.rows_at_once, seed=recipe.seed),
        held_out=tuple(one for row in held_out.rows for one in row),
        labels=data.labels,
        loss=label_loss if recipe.task == "classification" else next_token_loss,
        padding_id=prepared.padding_id,
        device=prepared.device,
        remarks=(*train.told("training", limit), *held_out.told("held-out", limit)),
    )
