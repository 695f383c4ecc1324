"""Which rows a step takes: a pure function of (seed, step), so that there is no position to save or to lose."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache

from allpass.recipe.encoding import Example
from workers.trainer.cutting import Rows, as_drawn

Row = tuple[Example, ...]


class RowStream:
    """Rows in an order of its own for each epoch, in batches; the last batch of an epoch has what is left.

    A row may be several sequences, all in the same step: how many steps there are follows from the rows. `cut`: how
    the sequences of a step become micro-batches of at most so many."""

    def __init__(
        self,
        rows: tuple[Row, ...],
        *,
        batch_size: int,
        rows_at_once: int,
        seed: int,
        cut: Callable[[Rows, int], list[Rows]] = as_drawn,
    ) -> None:
        if not rows:
            raise ValueError("there are no rows to train on")
        self._rows = rows
        self._batch_size = batch_size
        self._rows_at_once = rows_at_once
        self._seed = seed
        self._cut = cut
        self.steps_per_epoch = -(-len(rows) // batch_size)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    @property
    def examples(self) -> tuple[Example, ...]:
        """The sequences of all rows."""
        return tuple(one for row in self._rows for one in row)

    def epoch_of(self, step: int) -> tuple[int, int]:
        """(epoch, position) of a step, both from 0; steps count from 1."""
        return divmod(step - 1, self.steps_per_epoch)

    def rows(self, step: int) -> Rows:
        """The sequences of a step's rows."""
        epoch, position = self.epoch_of(step)
        order = _order(len(self._rows), self._seed, epoch)
        chosen = order[position * self._batch_size : (position + 1) * self._batch_size]
        return [one for number in chosen for one in self._rows[number]]

    def cut_into(self, rows_at_once: int) -> RowStream:
        """The same rows in the same steps, of which so many go through the model at once."""
        return RowStream(
            self._rows, batch_size=self._batch_size, rows_at_once=rows_at_once, seed=self._seed, cut=self._cut
        )

    def micro_batches(self, step: int) -> list[Rows]:
        """The same, as they go through the model."""
        return self._cut(self.rows(step), self._rows_at_once)


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> list[int]:
    """Python's shuffle of a string's seed is the same on every machine and version."""
    order = list(range(count))
    random.Random(f"allpass recipe {seed} {epoch}").shuffle(order)  # noqa: S311 - an order of rows is no secret
    return order
