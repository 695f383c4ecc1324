"""Checkpoints of two jobs that train as one: the whole state, in the session of each whose own steps went on."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from allpass.training.session import EXIT_STOPPED, Snapshot
from allpass.training.snapshots import HostCopies
from allpass.training.torch_checkpoints import Checkpoints
from allpass.training.torch_state import TrainingState, save_tree, trainable_weights, training_tree
from workers.trainer.apart import PAIR_NAME, pair_in
from workers.trainer.shared import Shared
from workers.trainer.side import Side


class NothingInCommon(ValueError):
    """The two have no state in common to go on from."""


class Keeping:
    """What `Checkpoints` is to one job. `parts`: of the update; `is_stopping`: whether both are to leave."""

    def __init__(
        self, shared: Shared, sides: Sequence[Side], parts: Mapping[str, Any], is_stopping: Callable[[], bool]
    ) -> None:
        self._shared = shared
        self._sides = tuple(sides)
        self._parts = dict(parts)
        self._is_stopping = is_stopping
        self._copies = HostCopies()
        self._saved: dict[str, int | None] = {}  # own step of the newest save, by side

    def resume(self) -> TrainingState | None:
        """The newest state of the pair that either has; None for a fresh start. Raises Strangers when one of them has
        begun without the other."""
        jobs = [side.name for side in self._sides]
        found = [(side, side.session.resume()) for side in self._sides]
        begun = [(side, pair_in(resume.path)) for side, resume in found if resume is not None]
        if not begun:
            return None
        pairs = [(pair["step"], pair["left"], side) for side, pair in begun if pair and pair["jobs"] == jobs]
        _, left, newest = max(pairs, key=lambda one: one[0], default=(0, [], None))
        mine = {side.name for _, _, side in pairs}
        if newest is None or any(side.name not in mine and side.name not in left for side, _ in begun):
            raise NothingInCommon("one of the two has trained without the other since it began")
        self._saved = {side.name: side.session.saved_step for side in self._sides}
        return Checkpoints(self._shared, session=newest.session, **self._parts).resume()

    def after_step(self, step: int, *, data: Any = None, metrics: Mapping[str, Any] | None = None) -> None:
        """Save when it is time; leave the process (code 75) when both are to leave, and that is saved."""
        is_stopping = self._is_stopping()
        training = [side for side in self._sides if side.left is None]
        if is_stopping:
            self.finish()
        due = [side.session.should_checkpoint(side.step) for side in training]  # each notices what its save has met
        if is_stopping or any(due):
            self._save(step, data, [side for side in training if side.step not in (0, self._saved.get(side.name))])
        if is_stopping:
            self.finish()
            sys.exit(EXIT_STOPPED)

    def finish(self) -> None:
        """Return when no save is under way any more."""
        for side in self._sides:
            side.session.finish_saving()

    def _save(self, step: int, data: Any, sides: Sequence[Side]) -> None:
        if not sides:
            return
        tree = training_tree(step=step, weights=trainable_weights(self._shared), data=data, **self._parts)
        left = [side.name for side in self._sides if side.left is not None]
        mark = {"step": step, "jobs": [side.name for side in self._sides], "left": left}
        snapshot = _Shared(*self._copies.take(tree), mark, len(sides))
        for side in sides:
            side.session.save_soon(side.step, lambda: snapshot, dict(side.told))
            self._saved[side.name] = side.step


class _Shared(Snapshot):
    """One copy, which each of so many `users` writes."""

    def __init__(self, tree: Any, give_back: Callable[[], None], mark: Mapping[str, Any], users: int) -> None:
        self._tree = tree
        self._give_back = give_back
        self._mark = mark
        self._users = users
        self._lock = threading.Lock()

    def write(self, folder: Path) -> None:
        save_tree(folder, self._tree)
        (folder / PAIR_NAME).write_text(json.dumps(self._mark), encoding="utf-8")

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last:
            self._tree = None
            self._give_back()
