"""Checkpoints of a training of which each process has a share: all write together, each its own, at one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from allpass.training.elastic.ranks import Ranks
from allpass.training.parts import PART
from allpass.training.session import Session
from allpass.training.silent import Silent
from allpass.training.spread_state import part_name, resume_spread
from allpass.training.torch_state import TrainingState, restore_rng, save_tree, trainable_weights, training_tree
from allpass.training.tree import is_spread
from workers.trainer.best import IN_MEMORY_BYTES
from workers.trainer.on_disk import on_disk


class OfMachine(Silent):
    """Of the first process of a further machine, which has something to say after all: that its part is written."""

    def _append(self, line: dict[str, Any]) -> None:
        if PART in line:
            Session._append(self, line)


class SplitCheckpoints:
    """As `Checkpoints`, of all processes at the same time. The first one knows when; the training waits until all have
    written. `ranks`: those of now."""

    def __init__(self, model: Any, session: Session, parts: Mapping[str, Any], ranks: Callable[[], Ranks]) -> None:
        self._model = model
        self._session = session
        self._parts = parts
        self._ranks = ranks

    def resume(self) -> TrainingState | None:
        """Whoever wrote it, on however many GPUs. Raises what `resume_spread` raises."""
        found = self._session.resume()
        if found is None:
            return None
        state = resume_spread(found.path, self._model, self._parts)
        restore_rng(state["rng"])
        return TrainingState(step=state["step"], weights=state["weights"], data=state["data"])

    def after_step(self, step: int, *, data: Any = None, metrics: Mapping[str, Any] | None = None) -> None:
        """Save where it is time; the first process leaves when it was asked to and that is saved, and all end with it.
        Raises PeerLost."""
        session, ranks = self._session, self._ranks()
        with ranks.losing():
            is_due = ranks.of_first(ranks.is_first and session.should_checkpoint(step))
        self._save(step, data, metrics, is_due=is_due)

    def save(self, step: int, *, data: Any = None, metrics: Mapping[str, Any] | None = None) -> None:
        """This step whatever the time, unless it is saved. Raises PeerLost."""
        self._save(step, data, metrics, is_due=True)

    def _save(self, step: int, data: Any, metrics: Mapping[str, Any] | None, *, is_due: bool) -> None:
        ranks = self._ranks()
        if is_due:
            with ranks.losing():
                self._session.save_parts(step, self._writing(step, data), None if metrics is None else dict(metrics))
        if ranks.is_first:
            self._session.exit_if_stopping(step)

    def _writing(self, step: int, data: Any) -> Callable[[Path], None]:
        ranks = self._ranks()

        def write(folder: Path) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            tree = training_tree(step=step, weights=trainable_weights(self._model), data=data, **self._parts)
            save_tree(folder, tree, part_name(ranks.own, ranks.count))

        return write


def put_together(model: Any, folder: Path, ranks: Ranks) -> dict[str, Any] | None:
    """All weights of the model by name, in the first process: on the host, and where they are many in a file of
    `folder` that nobody sees. The others give what they have. Raises PeerLost."""
    weights = model.state_dict(keep_vars=True)
    distinct = {str(id(one)): one for one in weights.values()}
    with torch.no_grad(), ranks.losing():
        if not ranks.is_first:
            for one in distinct.values():
                _whole(one)
            return None
        found = _kept(distinct, folder)
    return {name: found[str(id(one))] for name, one in weights.items()}


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if is_spread(tensor) else tensor


def _kept(tensors: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    if sum(one.numel() * one.element_size() for one in tensors.values()) > IN_MEMORY_BYTES:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return on_disk(tensors, folder, _whole)
        except OSError as error:
            print(f"training: the model is put together in memory: {error}", flush=True)
    return {name: _whole(one).detach().to("cpu", copy=True) for name, one in tensors.items()}
