"""The loop of a run of two jobs: what training side by side and training in turn have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allpass.training.session import Session
from allpass.training.torch_checkpoints import Checkpoints
from workers.trainer.agreement import differing
from workers.trainer.loop import Diverged
from workers.trainer.monitor import LossMonitor
from workers.trainer.shared import Shared
from workers.trainer.side import Side
from workers.trainer.updating import Update

DROPPED = "it was dropped"


class Pair:
    """Two sides on one model. `session` is the run's: it saves the state of both, and hears of stops (SystemExit with
    code 75); sides report in sessions of their own.

    Raises ValueError for two jobs that cannot be trained as one.
    """

    def __init__(self, shared: Shared, sides: Sequence[Side], update: Update, session: Session) -> None:
        first, second = sides
        why_not = differing(first.recipe, second.recipe)
        if why_not is not None:
            raise ValueError(f"{first.name} and {second.name} cannot be trained as one: {why_not}")
        self.first, self.second = first, second
        self.step = 0
        self._shared = shared
        self._update = update
        self._session = session
        self._checkpoints = self._checkpointing()
        self._monitor = LossMonitor()
        self._dropping: set[str] = set()

    def drop(self, name: str) -> None:
        """This job leaves before the next step (cancelled, paused or moved away), with a checkpoint of its own; the
        other one goes on. May be called from a signal handler."""
        self._dropping.add(name)

    def run(self) -> str | None:
        """Train until nobody takes steps any more: None. Where the two do not help each other: why. Each that was still
        in then has a checkpoint of its own to go on from, if it had a best state, and begins anew if not.

        Raises Diverged when a side's loss is no number and there is nobody to be split from.
        """
        self._resume()
        why = self._first_look() or self._look()
        while why is None and self._goes_on():
            why = self._advance()
        self._checkpoints.finish()
        return why

    def _checkpointing(self) -> Any:
        """What saves and resumes the state of both."""
        return Checkpoints(self._shared, session=self._session, **self._update.parts)

    def _leaves(self, side: Side) -> None:
        """This side takes part no longer: it is through, and its outputs are written, or it was dropped."""

    def _end_if_due(self, side: Side) -> None:
        if side.end_if_due():
            self._leaves(side)

    def _advance(self) -> str | None:
        self._let_go()
        if not self._goes_on():
            return None
        side = self._turn(self.step + 1)
        try:
            side.take(self._update)
        except Diverged as error:
            if not self._both_in():
                raise
            return self._parted(str(error), has_diverged=True)
        self.step += 1
        why = self._look()
        if why is None:
            self._checkpoints.after_step(self.step, data=self._state(), metrics=side.told)
        return why

    def _turn(self, step: int) -> Side:
        """Whose step this is."""
        raise NotImplementedError

    def _goes_on(self) -> bool:
        raise NotImplementedError

    def _watched_with(self, side: Side) -> Sequence[Side]:
        """Whose held-out rows are looked at when an evaluation of `side` is due, beside its own: who is to improve."""
        raise NotImplementedError

    def _part(self, side: Side, *, has_diverged: bool) -> None:
        """Write what this side goes on from by itself. The model is as before."""
        raise NotImplementedError

    def _let_go(self) -> None:
        for side in (self.first, self.second):
            if side.name in self._dropping and side.left is None:
                self._part(side, has_diverged=False)
                side.left = DROPPED
                self._leaves(side)

    def _both_in(self) -> bool:
        return self.first.left is None and self.second.left is None

    def _first_look(self) -> str | None:
        """What held-out losses are before any training. Not given up for a stop: nothing is lost by being killed."""
        watched = {one.name: one for side in self._training() for one in self._watched_with(side)}
        for side in watched.values():
            if self.step > 0 or self._monitor.knows(side.name):
                continue
            found = side.look(may_give_up=False)
            if found is not None:
                why = self._monitor.add(side.name, 0.0, found["eval_loss"])
                if why is not None:
                    return self._parted(why, has_diverged=False)
        return None

    def _training(self) -> Sequence[Side]:
        """Who takes steps at all."""
        raise NotImplementedError

    def _look(self) -> str | None:
        """All evaluations that are due and not done; whoever is through leaves. Why to split, or None."""
        for side in self._training():
            if side.is_due:
                watched = [one for one in self._watched_with(side) if one.task.held_out]
                found = {one.name: one.look() for one in {side.name: side, **{w.name: w for w in watched}}.values()}
                if any(one is None for one in found.values()):
                    return None  # a stop was asked for, and is served first: the next machine evaluates
                side.take_in(found[side.name] or {})
                self._end_if_due(side)
                why = self._heed(side, watched, found)
                if why is not None:
                    return self._parted(why, has_diverged=False)
            self._end_if_due(side)
        return None

    def _heed(self, side: Side, watched: Sequence[Side], found: dict[str, dict[str, float] | None]) -> str | None:
        for one in watched:
            metrics = found[one.name]
            if metrics is not None and self._both_in():
                why = self._monitor.add(one.name, side.epochs, metrics["eval_loss"])
                if why is not None:
                    return why
        return None

    def _parted(self, why: str, *, has_diverged: bool) -> str:
        self._checkpoints.finish()
        for side in (self.first, self.second):
            if side.left is None:
                self._part(side, has_diverged=has_diverged)
        return why

    def _state(self) -> dict[str, Any]:
        return {
            "first": self.first.state(),
            "second": self.second.state(),
            "monitor": self._monitor.state(),
            "cut": self.first.recipe.cut,
        }

    def _resume(self) -> None:
        state = self._checkpoints.resume()
        if state is None:
            return
        self.step = state.step
        self.first.restore(state.data["first"])
        self.second.restore(state.data["second"])
        self._monitor.restore(state.data["monitor"])
        for side in (self.first, self.second):
            if side.left is not None:
                if side.left != DROPPED:
                    side.write()  # what it wrote may have been lost with the machine
                self._leaves(side)
        for side in (self.first, self.second):
            side.say(f"training: goes on with step {side.step + 1} of {side.last_step}")
