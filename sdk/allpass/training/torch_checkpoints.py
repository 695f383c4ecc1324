"""Saving and resuming a PyTorch training in two lines, beside the training, and exactly.

    from allpass import training
    from allpass.training.torch_checkpoints import Checkpoints

    checkpoints = Checkpoints(model, optimizer=optimizer, scheduler=scheduler)
    state = checkpoints.resume()  # last before the loop: it sets the random generators
    for step in range(state.step + 1 if state else 1, steps + 1):
        loss = train_one_step(step)
        training.report(step, loss=loss)
        checkpoints.after_step(step, data={"epoch": epoch, "position": position})

Saved are the trainable weights (frozen ones never change), the state of optimizer, scheduler and gradient scaler, every
random generator, and `data`, which says where in the data set the training is. A save makes the training wait for a
copy in memory only; the file is written and uploaded while the next steps run. Where the host has no memory to spare
for such copies (a full fine-tuning), the training waits until the file is written, tensor by tensor.

Several processes each save what they have: parameters that are spread over them (FSDP2), and their own random
generators. All of them call everything here. Of a job on several machines each machine's files are a part of the
checkpoint, and the training waits until all have written.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, Callable, List, Mapping, Optional

from allpass.training import session as session_of_this_process
from allpass.training.host_memory import available_bytes
from allpass.training.session import Session, Snapshot
from allpass.training.snapshots import HostCopies, size_of
from allpass.training.torch_state import (
    STATE_NAME,
    TrainingState,
    load_into,
    load_tree,
    load_weights,
    restore_rng,
    save_tree,
    trainable_weights,
    training_tree,
)

_SMALL_BYTES = 256 * 1024 * 1024
_SPARED = 4  # the part of what is free that copies may take: others may train here too
_SETS = 2  # of copies: one is taken while the one before is still written
_OTHERS_WAIT_S = 1800.0
_LOOK_S = 0.01


class Checkpoints:
    """The checkpoints of one model's training.

    `accumulated=True`: gradients belong to the state, for a loop that counts micro-batches as steps and may be stopped
    between two of them. `alone=True`: this process has the whole state, and is the only one that saves it, whatever
    processes train with it.
    """

    def __init__(
        self,
        model: Any,
        *,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        accumulated: bool = False,
        alone: bool = False,
        session: Optional[Session] = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._scaler = scaler
        self._accumulated = accumulated
        self._session = session or session_of_this_process()
        self._copies = HostCopies()
        self._judged_bytes = 0  # how large a state was when it was last asked whether copies of it fit
        self._copies_fit = True
        self._ranks = _Ranks(alone)

    def resume(self) -> Optional[TrainingState]:
        """Load the checkpoint to continue from; None for a fresh start.

        Raises ValueError when it is another model's, or was saved by another number of processes.
        """
        found = self._session.resume()
        if found is None:
            return None
        name = self._ranks.file_name()
        if self._ranks.is_alone:
            return self._resume_whole(found.path)
        if not (found.path / f"{name}.json").is_file():
            there = sorted(path.stem for path in found.path.glob(f"{STATE_NAME}*.json"))
            raise ValueError(
                f"{found.path} holds {', '.join(there) or 'no training state'}; {name} was expected: "
                f"a checkpoint of several processes is resumed by as many"
            )
        state = load_tree(found.path, name)
        load_weights(self._model, state["weights"])
        load_into(state, found.path, optimizer=self._optimizer, scheduler=self._scheduler, scaler=self._scaler)
        self._load_gradients(state.get("gradients"))
        restore_rng(state["rng"])
        return TrainingState(step=state["step"], weights=state["weights"], data=state["data"])

    def _resume_whole(self, folder: Path) -> TrainingState:
        """Whoever wrote it: this process has all of it."""
        from allpass.training.spread_state import resume_spread

        parts = {"optimizer": self._optimizer, "scheduler": self._scheduler, "scaler": self._scaler}
        state = resume_spread(folder, self._model, parts)
        self._load_gradients(state.get("gradients"))
        restore_rng(state["rng"])
        return TrainingState(step=state["step"], weights=state["weights"], data=state["data"])

    def after_step(self, step: int, *, data: Any = None, metrics: "Optional[dict[str, Any]]" = None) -> None:
        """Call after every step: saves when it is time, and leaves the process when a stop was asked for and this step
        is saved.

        `metrics` of the checkpoint: by default, what was reported of this step.
        """
        session = self._session
        due, stop, busy = self._ranks.any_of(
            [session.should_checkpoint(step), session.stop_requested(), session.is_saving()]
        )
        if stop:
            session.request_stop()
            due = session.saved_step != step
            session.finish_saving()
            self._ranks.meet()  # nobody takes away what another one still collects
        if due and self._is_in_parts:
            session.save_parts(step, self._writing(step, data), metrics)
        elif due and (stop or not busy or not self._ranks.are_many):
            prepare = self._preparing(step, data)
            session.save_soon(step, prepare, metrics, announced=self._ranks.own == 0)
            if not self._copies_fit:
                session.finish_saving()
        if stop:
            self._ranks.meet()
        session.exit_if_stopping(step)

    def save(self, step: int, *, data: Any = None, metrics: "Optional[dict[str, Any]]" = None) -> None:
        """Save this step whatever the time, unless this process has; return when it is saved. A full disk costs the
        checkpoint and is told. A stop that was asked for meanwhile is served."""
        session = self._session
        session.finish_saving()
        if self._is_in_parts:
            session.save_parts(step, self._writing(step, data), metrics)
        else:
            session.save_soon(step, self._preparing(step, data), metrics, announced=self._ranks.own == 0)
            session.finish_saving()
        session.exit_if_stopping(step)

    def finish(self) -> None:
        """Return when the last save is through: call it after the loop, before results are written."""
        self._session.finish_saving()

    @property
    def _is_in_parts(self) -> bool:
        """Whether the files of some processes are on other machines."""
        return self._ranks.are_many and int(self._session.environment.get("ALLPASS_NODES", "1")) > 1

    def _writing(self, step: int, data: Any) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            _await_gpus()
            save_tree(folder, self._tree(step, data), self._ranks.file_name())

        return write

    def _tree(self, step: int, data: Any) -> "dict[str, Any]":
        tree = training_tree(
            step=step,
            weights=trainable_weights(self._model),
            optimizer=self._optimizer,
            scheduler=self._scheduler,
            scaler=self._scaler,
            data=data,
        )
        if self._accumulated:
            tree["gradients"] = {name: one.grad for name, one in self._model.named_parameters() if one.grad is not None}
        return tree

    def _preparing(self, step: int, data: Any) -> Callable[[], Snapshot]:
        def prepare() -> Snapshot:
            tree = self._tree(step, data)
            if self._has_room_for(tree):
                return _Copied(step, self._ranks, *self._copies.take(tree))
            _await_gpus()
            return _Copied(step, self._ranks, tree, lambda: None)

        return prepare

    def _has_room_for(self, tree: Any) -> bool:
        """Whether copies of the state have room in the host's memory. Asked again when it has grown by a part: what is
        free now has been less by the copies of before."""
        size_bytes = size_of(tree)
        if size_bytes > self._judged_bytes * 5 // 4:
            free_bytes = available_bytes()
            self._copies_fit = (
                size_bytes <= _SMALL_BYTES or free_bytes is None or _SETS * size_bytes <= free_bytes // _SPARED
            )
            self._judged_bytes = size_bytes
            if not self._copies_fit:
                self._copies = HostCopies()  # of a state that was smaller
        return self._copies_fit

    def _load_gradients(self, saved: Optional[Mapping[str, Any]]) -> None:
        if not self._accumulated:
            return
        if saved is None:
            raise ValueError("the checkpoint was saved without gradients: Checkpoints(accumulated=True) when saving")
        for name, parameter in self._model.named_parameters():
            if name in saved:
                parameter.grad = saved[name].to(parameter.device)


def _await_gpus() -> None:
    """Another thread reads what this one's kernels may still be writing."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


class _Copied(Snapshot):
    """Of a copy of the state, or of the state itself, where the training waits until it is written."""

    def __init__(self, step: int, ranks: "_Ranks", tree: Any, give_back: Callable[[], None]) -> None:
        self._step = step
        self._ranks = ranks
        self._tree = tree
        self._give_back = give_back

    def write(self, folder: Path) -> None:
        self._ranks.write(self._step, folder, lambda place: save_tree(place, self._tree, self._ranks.file_name()))

    def release(self) -> None:
        self._tree = None
        self._give_back()


class _Ranks:
    """The processes of one training on one machine: what they agree on, and how their files come together."""

    def __init__(self, alone: bool = False) -> None:
        from torch import distributed

        self.is_alone = alone
        are_many = not alone and distributed.is_available() and distributed.is_initialized()
        self._distributed: Any = distributed if are_many else None
        self.count: int = self._distributed.get_world_size() if self._distributed else 1
        self.own: int = self._distributed.get_rank() if self._distributed else 0

    @property
    def are_many(self) -> bool:
        return self.count > 1

    def file_name(self) -> str:
        return f"{STATE_NAME}-{self.own + 1}-of-{self.count}" if self.are_many else STATE_NAME

    def any_of(self, flags: List[bool]) -> List[bool]:
        """Each flag as any process has it: all of them decide the same."""
        if not self.are_many:
            return flags
        import torch

        device = "cuda" if self._distributed.get_backend() == "nccl" else "cpu"
        told = torch.tensor([int(flag) for flag in flags], device=device)
        self._distributed.all_reduce(told, op=self._distributed.ReduceOp.MAX)
        return [bool(one) for one in told.tolist()]

    def meet(self) -> None:
        """Return when all are here: who leaves early would have the others killed."""
        if self.are_many:
            self._distributed.barrier()

    def write(self, step: int, folder: Path, save: Callable[[Path], None]) -> None:
        """Of one process: into `folder`. Of several: each into a place of its own beside, from which the first one
        takes all into `folder`. Raises TimeoutError when another one does not come."""
        if not self.are_many:
            save(folder)
            return
        if self.own != 0:
            self._write_apart(folder, step, save)
            return
        save(folder)
        for rank in range(1, self.count):
            done = self._place(folder.parent, step, rank)
            self._await(done)
            for path in done.iterdir():
                path.rename(folder / path.name)
            done.rmdir()

    def _write_apart(self, folder: Path, step: int, save: Callable[[Path], None]) -> None:
        for left in folder.glob(f".rank-{self.own}-*"):
            shutil.rmtree(left, ignore_errors=True)
        done = self._place(folder, step, self.own)
        partial = done.with_name(f"{done.name}.partial")
        partial.mkdir(parents=True)
        save(partial)
        partial.rename(done)

    def _place(self, folder: Path, step: int, rank: int) -> Path:
        return folder / f".rank-{rank}-step-{step}"

    def _await(self, done: Path) -> None:
        end_s = time.monotonic() + _OTHERS_WAIT_S
        while not done.is_dir():
            if time.monotonic() > end_s:
                raise TimeoutError(f"another process of this training did not save within {_OTHERS_WAIT_S:g} s: {done}")
            time.sleep(_LOOK_S)
