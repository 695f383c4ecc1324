"""One training by a Lightning `Trainer` that knows nothing of us, from its first step to its last.

Lightning saves and restores models, optimizers, schedules, callbacks and how far its loops are. What it does not keep
is where in an epoch's data it was, and the random generators. So of each epoch those are taken down as they were when
its data began: a training that goes on in the middle draws the same order again, loads what was used without using it
(data that is random while it is loaded draws the same numbers), and then sets the generators to what they were when it
was saved.
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from allpass.hooks import generators
from allpass.hooks.failing_open import FailingOpen
from allpass.hooks.fitted import Kept, put_back, take
from allpass.hooks.instead import Instead
from allpass.hooks.loops import Batches, below, step_of, takes_weights_only, total_of
from allpass.hooks.trainer import say
from allpass.training.session import Session

CHECKPOINT, KEPT = "lightning.ckpt", "allpass.pt"
_MOST_TRIES = 3  # to save when asked to stop
_SHARE = 19.0  # a save that nobody asked for comes after so many times the time that the one before took
_REPORT_S = 10.0  # a step that nothing is logged of is told so often


class Fit:
    """Serves `trainer` until `leave`. `before`: what SIGTERM did when the script began to train."""

    def __init__(self, trainer: Any, session: Session, before: Any) -> None:
        self._trainer = trainer
        self._session = session
        self._before = before
        self._ours = signal.getsignal(signal.SIGTERM)
        self._loop = trainer.fit_loop
        self._epochs = Instead(self._loop)
        self._batches = Instead(self._loop.epoch_loop)
        self._logs = Instead(trainer._logger_connector)
        self._resume: "Optional[Path]" = None
        self._kept: "Optional[Kept]" = None  # what this run goes on from, until it has
        self._others: "List[Any]" = []  # generators that loaders of data have of their own
        self._begun: "Dict[str, Any]" = {}  # the generators: at "setup", and of this epoch at "order" and "first"
        self._is_off = False
        self._tries = 0
        self._not_before_s = 0.0
        self._told_s = 0.0
        self._logged: "tuple[int, Dict[str, float]]" = (-1, {})
        self._has_described = False
        self._open = FailingOpen("Lightning's hook")

    def begin(self) -> None:
        loop, batches = self._loop, self._loop.epoch_loop
        self._epochs.put("setup_data", self._around(loop.setup_data, before=self._set_up, after=self._is_set_up))
        self._epochs.put("reset", self._around(loop.reset, before=self._run_begins))
        self._epochs.put("on_advance_start", self._around(loop.on_advance_start, before=self._epoch_begins))
        self._epochs.put("on_advance_end", self._around(loop.on_advance_end, after=self._epoch_ended))
        self._batches.put("reset", self._reset(batches.reset))
        self._batches.put("on_run_start", self._run_start(batches.on_run_start))
        self._batches.put("on_advance_end", self._around(batches.on_advance_end, after=self._batch_ended))
        connector = self._trainer._logger_connector
        self._logs.put("log_metrics", self._told(connector.log_metrics))

    def leave(self) -> None:
        """The trainer is as it was. Never raises."""
        for act in (self._epochs.take_back, self._batches.take_back, self._logs.take_back, self._die_of_sigterm):
            with contextlib.suppress(Exception):
                act()

    # How it begins.

    def resumed(self, given: "Dict[str, Any]") -> "Dict[str, Any]":
        """What `fit()` is given in another way, where this run goes on; the script's own checkpoint wins if it is as
        far."""
        found = self._session.resume()
        if found is None or found.learned:
            return {}
        if not (found.path / CHECKPOINT).is_file():
            say(f"the checkpoint of step {found.step} is none of Lightning's: the script begins as it would")
            return {}
        if step_of(given.get("ckpt_path")) >= found.step:
            return {}
        self._kept = Kept.read(found.path / KEPT)
        put_back(self._trainer, self._kept, found.path)
        changed: "Dict[str, Any]" = {"ckpt_path": str(found.path / CHECKPOINT)}
        if takes_weights_only(self._trainer):
            changed["weights_only"] = False  # it is the job's own, with whatever its callbacks keep
        self._resume = found.path
        return changed

    def _set_up(self) -> None:
        """The training's data is asked for: by the training, or before it by a schedule that is made for its length."""
        if self._loop._combined_loader is not None:
            return
        if self._kept is not None:
            generators.set_states(self._kept.generators["setup"])
        self._begun["setup"] = generators.states()
        self._begun["order"] = self._begun["setup"]

    def _is_set_up(self) -> None:
        fetcher = self._loop._data_fetcher
        loaders = [] if self._loop._combined_loader is None else self._loop._combined_loader.flattened
        self._others = [one for loader in loaders for one in generators.of_loader(loader)]
        if self._is_off or fetcher is None:
            return
        if fetcher.length is None:
            self._give_up("its data has no known length, and is fetched ahead")
        elif type(fetcher).__name__ == "_DataLoaderIterDataFetcher":
            self._give_up("its steps take their data themselves")
        elif any(hasattr(loader, "load_state_dict") for loader in loaders):
            self._give_up("its loader of data keeps a place of its own")
        elif not self._has_described:
            self._has_described = True
            self._session.describe(
                micro_batch=getattr(loaders[0], "batch_size", None),
                accumulation=self._trainer.accumulate_grad_batches,
                total_steps=total_of(self._trainer),
            )

    def _run_begins(self) -> None:
        """All is loaded, and the first epoch is next."""
        if self._is_off:
            return
        signal.signal(signal.SIGTERM, self._ours)  # Lightning's own would leave without saving
        if self._kept is not None:
            self._be_where_it_was(self._kept)

    def _be_where_it_was(self, kept: Kept) -> None:
        """All was saved between two batches, or between two epochs. Lightning's own way of going on is made for the
        moments at which its callbacks save, and would count some things twice."""
        loops = (self._loop, *below(self._loop))
        for loop in loops:
            loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
        self._loop._restarting = kept.batches > 0

    # Each epoch.

    def _epoch_begins(self) -> None:
        if self._kept is not None and not self._kept.batches:
            self._restore(self._kept)
            self._kept = None

    def _reset(self, original: "Callable[[], None]") -> "Callable[[], None]":
        def reset() -> None:
            if self._kept is None or not self._kept.batches:
                original()

        return reset

    def _run_start(self, original: "Callable[[Any], None]") -> "Callable[[Any], None]":
        """Where an epoch's data is drawn, but for the first epoch's, which was when it was set up."""

        def run_start(fetcher: Any) -> None:
            kept = self._kept
            self._loop._restarting = False
            if self._trainer.current_epoch > 0:
                if kept is not None:
                    self._open(lambda: generators.set_states(kept.generators["order"], self._others), None)
                self._begun["order"] = generators.states(self._others)
            original(fetcher)
            fetcher.iterator = self._batches_of(fetcher.iterator)

        return run_start

    def _batches_of(self, iterator: Any) -> "Batches":
        """As `iterator`, from where it was."""
        kept, self._kept = self._kept, None
        self._begun["first"] = None
        if kept is not None:
            self._open(lambda: self._skip(iterator, kept), None)
        return Batches(iterator, self._first)

    def _first(self) -> None:
        if self._begun["first"] is None:
            self._begun["first"] = generators.states(self._others)

    def _skip(self, iterator: Any, kept: Kept) -> None:
        generators.set_states(kept.generators["first"], self._others)
        self._begun["first"] = kept.generators["first"]
        for _ in range(kept.batches):
            next(iterator)
        self._restore(kept)

    def _restore(self, kept: Kept) -> None:
        generators.set_states(kept.generators["now"], self._others)
        kept.restore(self._trainer)

    # Each step.

    def _batch_ended(self) -> None:
        loop = self._loop.epoch_loop
        if loop._should_accumulate():
            return
        self._tell_step()
        if not loop._num_ready_batches_reached():  # what is due at the end of an epoch belongs to its last step
            self._save_if_due(batches=loop.batch_progress.current.ready)

    def _epoch_ended(self) -> None:
        self._save_if_due(batches=0)

    def _save_if_due(self, *, batches: int) -> None:
        """A stop is heard at the end of a step, and answered right there."""
        step = self._trainer.global_step
        if self._is_off or self._is_finished():
            return
        stop = self._session.stop_requested() and self._tries < _MOST_TRIES
        is_due = time.monotonic() >= self._not_before_s and self._session.should_checkpoint(step)
        if not stop and not is_due:
            return
        begun_s = time.monotonic()
        is_saved = self._session.saved_step == step or self._open(lambda: self._save(step, batches), False)
        self._not_before_s = time.monotonic() + _SHARE * (time.monotonic() - begun_s)
        self._tries += int(stop and not is_saved)
        if stop and is_saved:
            self._session.exit_if_stopping(step)

    def _save(self, step: int, batches: int) -> bool:
        trainer = self._trainer
        now = generators.states(self._others)

        def write(folder: Path) -> None:
            known = {**{name: self._begun.get(name) for name in ("setup", "order", "first")}, "now": now}
            take(trainer, known, batches, folder).write(folder / KEPT)
            trainer.save_checkpoint(folder / CHECKPOINT)

        told, values = self._logged
        self._session.save(step, write, values if told == step else {})
        generators.set_states(now, self._others)  # what is asked when saving may draw
        return True

    def _is_finished(self) -> bool:
        trainer, most = self._trainer, self._loop.max_epochs
        return bool(
            trainer.should_stop
            or trainer.global_step >= trainer.max_steps >= 0
            or (most is not None and 0 <= most <= self._loop.epoch_progress.current.processed)
        )

    # What it tells.

    def _told(self, original: "Callable[..., None]") -> "Callable[..., None]":
        def log_metrics(metrics: "Dict[str, Any]", step: "Optional[int]" = None) -> None:
            self._open(lambda: self._report(metrics), None)
            original(metrics, step=step)

        return log_metrics

    def _tell_step(self) -> None:
        if self._logged[0] != self._trainer.global_step and time.monotonic() - self._told_s >= _REPORT_S:
            self._open(lambda: self._report({}), None)

    def _report(self, metrics: "Dict[str, Any]") -> None:
        """All that is known of a step goes into its latest line."""
        if self._trainer.sanity_checking:
            return
        step = self._trainer.global_step
        known = self._logged[1] if self._logged[0] == step else {}
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if name not in ("step", "checkpoint") and (isinstance(value, (int, float)) or hasattr(value, "item"))
        }
        self._logged = (step, {**known, **numbers})
        self._told_s = time.monotonic()
        self._session.report(step, **self._logged[1])

    # When something is wrong.

    def _around(
        self,
        original: "Callable[..., Any]",
        *,
        before: "Optional[Callable[[], None]]" = None,
        after: "Optional[Callable[[], None]]" = None,
    ) -> "Callable[..., Any]":
        def called(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                self._open(before, None)
            result = original(*args, **kwargs)
            if after is not None:
                self._open(after, None)
            return result

        return called

    def _give_up(self, why: str) -> None:
        self._is_off = True
        self._die_of_sigterm()
        say(f"this training is not moved by itself: {why}")

    def _die_of_sigterm(self) -> None:
        """SIGTERM does what it did without us."""
        if signal.getsignal(signal.SIGTERM) is self._ours and self._before is not self._ours:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
