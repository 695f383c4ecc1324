"""One job after the other in one process (Ymir, section 4.3: temporal): the second starts from what the first learned.

The model, its base weights and the warm process stay; optimizer and schedule are new. From the hand-over on the second
is a job like any other: it has a checkpoint of step 0, from which any machine goes on with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from allpass.training.session import Session
from workers.trainer.loop import Loop
from workers.trainer.pair import Pair
from workers.trainer.shared import Shared
from workers.trainer.side import Side
from workers.trainer.updating import Update


class InTurn(Pair):
    """While the first trains, the second's held-out loss is watched, unless it has a head of its own, which nobody has
    trained yet."""

    def __init__(self, shared: Shared, sides: Sequence[Side], session: Session) -> None:
        first = sides[0]
        update = Update(first.recipe, shared.model, first.last_step, shared.prepared.device)
        super().__init__(shared, sides, update, session)

    def run(self) -> str | None:
        """As `Pair.run`, and then all of the second's training. Where the second was dropped, that is left out."""
        why = super().run()
        if why is None and self.second.left is None:
            loop = self.hand_over()
            with self._shared.of(self.second.number):
                loop.run()
        return why

    def hand_over(self) -> Loop:
        """The second's loop from the best that the first had, which is saved as the second's own checkpoint."""
        self.first.put_best_back()
        second = self.second
        update = second.start_alone(0, self._shared.prepared.device)
        return Loop(second.recipe, self._shared.prepared, second.task, update, second.session)

    def _turn(self, step: int) -> Side:
        return self.first

    def _training(self) -> Sequence[Side]:
        return (self.first,)

    def _goes_on(self) -> bool:
        return self.first.left is None

    def _watched_with(self, side: Side) -> Sequence[Side]:
        return () if self._shared.has_own_head(self.second.number) or self.second.left is not None else (self.second,)

    def _part(self, side: Side, *, has_diverged: bool) -> None:
        """The first goes on exactly as it would have alone, unless its loss is no number; the second begins anew."""
        if side is self.second or self.first.step == 0:
            return
        if has_diverged:
            side.part(self._shared.prepared.device)
        else:
            side.save(side.step, self._update, side.loop_state())
