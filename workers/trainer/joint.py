"""Two jobs side by side in one process (Ymir, section 4.3: spatial), on one adapter, with heads of their own."""

from __future__ import annotations

from collections.abc import Sequence

from allpass.training.session import Session
from workers.trainer.pair import Pair
from workers.trainer.shared import Shared
from workers.trainer.side import Side
from workers.trainer.turns import first_share, takes_first
from workers.trainer.updating import Update


class Joint(Pair):
    """Each step is a whole batch of one side: who, follows from (seed, step). A side that is through leaves, and the
    other one takes all further steps."""

    def __init__(self, shared: Shared, sides: Sequence[Side], session: Session) -> None:
        first, second = sides
        self._steps = first.last_step + second.last_step
        update = Update(first.recipe, shared, self._steps, shared.prepared.device)
        super().__init__(shared, sides, update, session)

    def _turn(self, step: int) -> Side:
        if not self._both_in():
            return self.first if self.second.left is not None else self.second
        share = first_share(step, self._steps, self.first.rows, self.second.rows)
        return self.first if takes_first(self.first.recipe.seed, step, share) else self.second

    def _training(self) -> Sequence[Side]:
        return (self.first, self.second)

    def _goes_on(self) -> bool:
        return self.first.left is None or self.second.left is None

    def _watched_with(self, side: Side) -> Sequence[Side]:
        return (side,)

    def _part(self, side: Side, *, has_diverged: bool) -> None:
        """From its best state, whatever happened: no side has an optimizer of its own."""
        side.part(self._shared.prepared.device)
