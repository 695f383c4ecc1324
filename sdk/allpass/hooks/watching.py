"""One training by a Transformers `Trainer` that knows nothing of us, from its first step to its last."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from allpass.hooks import kept
from allpass.hooks.borrowed import Borrowed
from allpass.hooks.drawing import Drawing
from allpass.hooks.failing_open import FailingOpen
from allpass.hooks.instead import Instead
from allpass.hooks.ranks import Ranks
from allpass.hooks.told import Told
from allpass.hooks.trainer import die_of_sigterm, say
from allpass.training.checkpoints import link_tree
from allpass.training.session import Session

Arguments = Tuple[Tuple[Any, ...], Dict[str, Any]]
_PLACE = ".trainer"  # below the checkpoint directory: where the saves are made that the script did not ask for
_MOST_TRIES = 3  # to save when asked to stop
_SHARE = 19.0  # a save that nobody asked for comes after so many times the time that the one before took


class Watch:
    """Serves `trainer` until `leave`. Of several processes each has one."""

    def __init__(self, trainer: Any, session: Session) -> None:
        self._trainer = trainer
        self._session = session
        self._ranks = Ranks()
        self._place = session.checkpoint_dir / _PLACE
        self._drawing = Drawing(trainer)
        self._resume: "Optional[Path]" = None
        self._arguments = Borrowed(trainer)
        self._is_off = False
        self._tries = 0
        self._not_before_s = 0.0
        self._saved_step: "Optional[int]" = None  # announced, as all processes know
        self._open = FailingOpen("the Trainer's hook")
        self._told = Told(session, self._open, self.begun, self._drawing)
        self._save = trainer._save_checkpoint
        self._after = trainer._maybe_log_save_evaluate
        self._instead = Instead(trainer)

    def prepared(self, args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> "Optional[Arguments]":
        """What `train()` is to be called with; None where a process of the training could not prepare it. What the
        first one has put back is there for all when it returns."""
        found = self._open(lambda: self._prepare(args, kwargs), None)
        return found if self._ranks.all_of(found is not None) else None

    def _prepare(self, args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> "Arguments":
        self.begin()
        return self.resumed(args, kwargs)

    def begin(self) -> None:
        self._instead.put("_save_checkpoint", self._save_and_announce)
        self._instead.put("_maybe_log_save_evaluate", self._after_step)
        self._drawing.begin()
        self._trainer.add_callback(self._told)

    def leave(self) -> None:
        """The trainer is as it was. Never raises."""
        for act in (
            self._instead.take_back,
            self._drawing.leave,
            self._arguments.give_back,
            lambda: self._trainer.remove_callback(self._told),
        ):
            with contextlib.suppress(Exception):
                act()

    # How it begins.

    def resumed(self, args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]") -> "Arguments":
        """The arguments of `train()`, with the checkpoint that this run begins with, unless the script's own is as
        far."""
        given = kwargs.get("resume_from_checkpoint", args[0] if args else None)
        found = self._session.resume()
        if found is not None and not found.learned:
            if not kept.is_checkpoint(found.path):
                say(f"the checkpoint of step {found.step} is none of a Trainer's: the script begins as it would")
            elif kept.step_of(given, self._trainer.args.output_dir) < found.step:
                self._resume = found.path
        if self._resume is not None:
            folder = self._resume
            if self._ranks.own == 0:
                self._open(lambda: kept.put_back_best(folder, self._trainer.args.output_dir), None)
            self._arguments.set("restore_callback_states_from_checkpoint", True)  # patience is counted on
            if args:
                args = (str(self._resume), *args[1:])
            else:
                kwargs = {**kwargs, "resume_from_checkpoint": str(self._resume)}
        return args, kwargs

    def begun(self, args: Any, state: Any) -> None:
        """All is loaded, and the first step is next."""
        self._arguments.give_back()
        if self._resume is not None:
            kept.restore_sums(self._trainer, self._resume, self._ranks.own)
        if state.is_world_process_zero:
            self._session.describe(
                micro_batch=args.per_device_train_batch_size,
                accumulation=args.gradient_accumulation_steps,
                checkpointing=bool(args.gradient_checkpointing),
                sharding="fsdp" if args.fsdp else None,
                total_steps=state.max_steps,
            )

    # Each step.

    def _after_step(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer has logged, evaluated and saved what is due; now it is our turn."""
        result = self._after(*args, **kwargs)
        is_last_of_epoch = float(self._trainer.state.epoch or 0.0).is_integer() and not self._told.has_epoch_ended
        if not self._is_off and not is_last_of_epoch:  # what is due at its end belongs to its last step
            due, stop, draws = self._ranks.any_of_last_time(self._open(self._wishes, [False, False, False]))
            if draws:
                self._give_up("it draws random numbers while it loads its data, and could not be resumed exactly")
            elif due and not self._is_finished():
                self._save_extra(stop=stop)
        return result

    def _wishes(self) -> "List[bool]":
        """Whether to save now, to leave then, or to do neither ever again. Whoever asks says that it saves (`Session`),
        so nobody does before it is known."""
        if self._drawing.is_seen or not self._drawing.is_known:
            return [False, False, self._drawing.is_seen]
        stop = self._session.stop_requested() and self._tries < _MOST_TRIES
        is_due = (
            self._ranks.own == 0
            and time.monotonic() >= self._not_before_s
            and self._session.should_checkpoint(self._trainer.state.global_step)
        )
        return [stop or is_due, stop, False]

    def _save_extra(self, *, stop: bool) -> None:
        """A checkpoint that the script did not ask for: it sees nothing of it. All processes are here."""
        step = self._trainer.state.global_step
        begun_s = time.monotonic()
        if self._saved_step != step:
            source = self._place / f"checkpoint-{step}"
            is_saved = self._ranks.all_of(self._open(lambda: self._write(source), False)) and self._announce(source)
            self._not_before_s = time.monotonic() + _SHARE * (time.monotonic() - begun_s)
            if not is_saved:
                self._failed(stop=stop)
                return
        if stop:
            self._ranks.all_of(True)  # who leaves early would have the others killed
            self._session.saved_step = step
            self._session.request_stop()
            self._session.exit_if_stopping(step)

    def _failed(self, *, stop: bool) -> None:
        self._tries += int(stop)
        if self._ranks.own == 0:
            shutil.rmtree(self._place, ignore_errors=True)
        if stop and self._is_off:  # as it would have without us
            os.kill(os.getpid(), signal.SIGTERM)

    def _write(self, source: Path) -> bool:
        with self._aside():
            self._save(self._trainer.model_wrapped, None)
        return self._note(source)

    @contextlib.contextmanager
    def _aside(self) -> "Iterator[None]":
        """What is saved goes to a place of ours, and nowhere else."""
        place = Instead(self._trainer)
        self._place.mkdir(parents=True, exist_ok=True)
        place.put("_get_output_dir", lambda *_, **__: str(self._place))
        self._arguments.set("push_to_hub", False)
        try:
            yield
        finally:
            self._arguments.give_back()
            place.take_back()

    # What the script itself saves.

    def _save_and_announce(self, *args: Any, **kwargs: Any) -> Any:
        state = self._trainer.state
        target = Path(self._trainer.args.output_dir) / f"checkpoint-{state.global_step}"
        if not self._is_off:
            self._open(lambda: kept.unshare(target), None)
        result = self._with_room(lambda: self._save(*args, **kwargs))
        if not self._is_off and not self._is_finished():
            is_there = self._open(lambda: self._note(target), False)
            if self._ranks.all_of(is_there):
                self._announce(target)
        return result

    def _note(self, folder: Path) -> bool:
        """False for a training that writes elsewhere: the next save of ours is announced."""
        if not folder.is_dir():
            return False
        self._place.mkdir(parents=True, exist_ok=True)
        kept.write_sums(self._trainer, self._place, self._ranks.own)
        return True

    def _with_room(self, save: Callable[[], Any]) -> Any:
        """What we keep must not be what fills the disk."""
        try:
            return save()
        except Exception as error:
            if self._is_off or not kept.is_full(error) or not self._session.make_room():
                raise
        return save()

    def _announce(self, source: Path) -> bool:
        """The first process alone does; the answer is for all. A folder that lacks something ends it."""
        missing: "List[str]" = []
        is_announced = True
        if self._ranks.own == 0:
            metrics = self._told.of_step(self._trainer.state.global_step)
            missing = self._open(lambda: kept.missing_in(source, self._ranks.count), ["what is needed"])
            is_announced = not missing and self._open(lambda: self._link(source, metrics), False)
            shutil.rmtree(self._place, ignore_errors=True)
        if not self._ranks.all_of(not missing):
            what = f": {', '.join(missing)} is missing" if missing else ""
            self._give_up(f"its checkpoints could not be resumed exactly{what}")
            return False
        is_announced = self._ranks.all_of(is_announced)
        if is_announced:
            self._saved_step = self._trainer.state.global_step
        return is_announced

    def _link(self, source: Path, metrics: "Dict[str, float]") -> bool:
        state = self._trainer.state

        def write(folder: Path) -> None:
            link_tree(source, folder)
            kept.take_sums(self._place, folder)
            kept.take_best(state.best_model_checkpoint, folder)

        self._session.save(state.global_step, write, metrics)
        return True

    def _is_finished(self) -> bool:
        """Resumed after its last step, or where the script has ended it, a Trainer would take one step too many."""
        state = self._trainer.state
        return bool(state.global_step >= state.max_steps or self._trainer.control.should_training_stop)

    # When something is wrong.

    def _give_up(self, why: str) -> None:
        self._is_off = True
        die_of_sigterm()
        if self._ranks.own == 0:
            say(f"this training is not moved by itself: {why}")
