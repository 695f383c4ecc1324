"""A run that changes its GPUs by beginning again (`restarting.py`): how its life differs from that of another one. For
the server it is one run, whose steps, log and bill go on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from workers.agent.errors import Aborted, Unsafe
from workers.agent.laying import clear_after, lay_here
from workers.agent.own_folders import Pattern
from workers.agent.preparing import Command
from workers.agent.process import Ended, Stoppable
from workers.agent.restarting import SHORT, UNSAVED, NextBegin, Restarts, begun_again, counted
from workers.agent.run import SIGTERM, Run
from workers.agent.training import TrainingMeter
from workers.agent.uploading import Candidate
from workers.agent.workspace import first_step


class RestartingRun(Run):
    """Its process may end, and another one go on in its place. It has its machine's processes for itself."""

    def __init__(self, desired: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        self._restarts = Restarts(desired["spec"])  # with the lock
        super().__init__(desired, *args, **kwargs)

    def apply(self, desired: Mapping[str, Any]) -> None:
        with self._lock:
            self._restarts.tell(desired["spec"])
        super().apply(desired)
        self._look_at_gpus()

    def report(self) -> Dict[str, Any]:
        with self._lock:
            return {**self._restarts.told(), **super().report()}

    def _gpus(self) -> Sequence[int]:
        return self._restarts.begin()

    def _environ(self, environ: Mapping[str, str]) -> Dict[str, str]:
        return {**super()._environ(environ), **counted(self._spec, len(self._restarts.used))}

    def _on_step(self, step: int) -> None:
        super()._on_step(step)
        self._look_at_gpus()

    def _on_shown(self) -> None:
        self._look_at_gpus()

    def _look_at_gpus(self) -> None:
        """From any thread: what its process has shown, and whether it is to have other GPUs."""
        with self._lock:
            training, process, restarts = self._training, self._process, self._restarts
            if not restarts.is_on or training is None or process is None or self._phase != "running":
                return
            before = restarts.told()
            restarts.is_on = not training.follows
            if training.stepped:
                restarts.trains()
            if training.shown:
                restarts.shows(after_save=training.rests_after_save)
            if training.is_unfit:
                restarts.refuse()
            if restarts.is_asked and not restarts.is_wanted and training.let_be():
                restarts.let_be()
            if restarts.is_due(shown=training.shown and not training.is_unfit):
                restarts.ask()
                training.ask_to_rest(partial(self._tell_to_rest, process), self._grace_ms)
            if restarts.told() != before:
                self._changed(True)

    def _tell_to_rest(self, process: Stoppable, grace_ms: int) -> None:
        """From any thread."""
        with self._lock:
            self._restarts.hears()
        process.terminate(grace_ms)

    def _await_end(self, command: Command, training: TrainingMeter, process: Stoppable) -> Ended:
        while True:
            ended = process.wait()
            with self._lock:
                if self._phase != "running" or not self._restarts.may_begin_again:
                    return ended
            begin = self._next(training, ended)
            if begin is None:
                with self._lock:
                    return replace(ended, strands=self._phase == "running" and self._restarts.strands(ended))
            try:
                process = self._begin_again(command, training, begin, ended)
            except Aborted:
                return ended
            except (OSError, Unsafe) as error:  # its job goes on elsewhere, from what is stored
                self._log.say(f"it cannot begin again here: {error}")
                training.settle(final=True)
                return Ended(signal=SIGTERM, left=ended.left, strands=True)

    def _next(self, training: TrainingMeter, ended: Ended) -> Optional[NextBegin]:
        """What the end of its process means; None where it is the run's."""
        saved = training.rest(ended)
        with self._lock:
            if self._phase != "running":
                return None
            told, short = training.was_told, training.is_short
            begin = self._restarts.after(ended, saved=saved is not None, told=told, short=short)
        if begin is None:
            training.settle()
        return begin

    def _begin_again(self, command: Command, training: TrainingMeter, begin: NextBegin, ended: Ended) -> Stoppable:
        """From the checkpoint that it has just saved, else its newest one. Raises Aborted, OSError, Unsafe."""
        if ended.left:  # on its GPUs
            raise Unsafe(f"processes of it cannot be ended: {', '.join(map(str, ended.left[:10]))}")
        environ, step, name = self._laid(dict(command.environ), training.newest)
        with self._lock:
            if self._phase != "running":
                raise Aborted("no longer wanted")
            had = len(self._restarts.used)
            training.begins_again(step, name)
            passed_s = self._restarts.begun(begin)
            process = self._process = self._launcher.start_again(command.argv, self._environ(environ), self._log.feed)
        for one in self._beside:
            one.begin(process)
        self._log.say(self._in_words(begin, had, step, passed_s))
        self._changed(True)
        return process

    def _laid(self, environ: Dict[str, str], saved: Optional[Candidate]) -> "Tuple[Dict[str, str], int, Optional[str]]":
        """What its next process finds, its step, and the name of the folder; None: as the first one began."""
        if saved is None:
            resume = environ.get("ALLPASS_RESUME_DIR")
            clear_after(self.workspace, [] if resume is None else [Path(resume)])
            return environ, first_step(self._spec), None
        folder = lay_here(self.workspace, saved, Pattern.of(self._spec["template"]))
        clear_after(self.workspace, [folder, saved.path])
        return begun_again(environ, folder, saved.step), saved.step, folder.name

    def _in_words(self, begin: NextBegin, had: int, step: int, passed_s: float) -> str:
        gpus = f"{len(begin.gpus)} GPU{'s' * (len(begin.gpus) != 1)}"
        if not begin.is_back:
            return (
                f"goes on with {gpus} instead of {had}, from step {step}, after {passed_s:.1f} s (restarted: not exact)"
            )
        why = {
            UNSAVED: "it has not saved when it was asked to",
            SHORT: f"on {had} nothing was left to do, and before there was",
        }.get(self._restarts.kept, f"it failed on {had}")
        return f"goes back to {gpus}, from step {step}, and keeps them: {why}"
