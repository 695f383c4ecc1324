"""One training process and what it was told: environment, SIGTERM, the clock of its checkpoints."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

from allpass.training.background import Background
from allpass.training.checkpoints import CheckpointFolder
from allpass.training.facts import Facts, layout
from allpass.training.layout import Plan
from allpass.training.links import LONGEST_URL, is_link
from allpass.training.spacing import spacing

EXIT_STOPPED = 75  # EX_TEMPFAIL: not finished, come again
LOCAL_CHECKPOINT_DIR = "allpass-checkpoints"
LOCAL_OUTPUT_DIR = "allpass-output"
_TRAILING_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True)
class Resume:
    """A complete checkpoint: a folder as `save` wrote it, and the number of steps finished in it.

    `learned`: it is another job's, whose weights a training of the built-in recipe begins with, at step 0."""

    path: Path
    step: int
    learned: bool = False


class Snapshot:
    """A state that stays as it is while the training goes on, until `release` is called. `write` may be called twice,
    into two empty folders, should the first run into a full disk."""

    def write(self, folder: Path) -> None:
        raise NotImplementedError

    def release(self) -> None:
        """Its memory may be used again."""


class Session:
    """What the module-level functions of `allpass.training` act on.

    `environment` and `monotonic_s` are arguments for tests; a process needs one session, `training.session()`.
    """

    def __init__(
        self,
        environment: Optional[Mapping[str, str]] = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._monotonic_s = monotonic_s
        self._stop_requested = False
        self._listens = False
        self._has_announced = False
        self._is_together = False  # with processes on other machines, and has said so
        self.saved_step: Optional[int] = None  # the step of the newest checkpoint, also of the one resumed from
        self._saved_at_s = monotonic_s()
        self._background = Background()
        self._reported: "tuple[int, dict[str, Any]]" = (-1, {})
        self._facts = Facts(monotonic_s)
        self._warned: "set[str]" = set()
        self._leaves = (-1, False)  # the last step that processes have agreed on, and whether they leave after it
        folder = self._environment.get("ALLPASS_CHECKPOINT_DIR", LOCAL_CHECKPOINT_DIR)
        self._checkpoints = CheckpointFolder(Path(folder).absolute(), keep=self._environment.get("ALLPASS_RESUME_DIR"))
        self._metrics_file = Path(
            self._environment.get("ALLPASS_METRICS_FILE", self._checkpoints.path / "metrics.jsonl")
        ).absolute()
        self._spacing = spacing(
            self._environment.get("ALLPASS_CHECKPOINT_INTERVAL_S"), self._environment.get("ALLPASS_MEAN_LIFE_S")
        )

    def listen(self) -> None:
        """Take SIGTERM as a request to save and leave. A handler that was there before is called as well.

        Python allows this in the main thread only; elsewhere a warning says that stops will not be noticed.
        """
        if threading.current_thread() is not threading.main_thread():
            self._warn_once(
                "thread", "first used outside the main thread: SIGTERM stays unnoticed; call training.resume() in main"
            )
            return
        before = signal.getsignal(signal.SIGTERM)

        def on_sigterm(number: int, frame: Any) -> None:
            self.request_stop()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, on_sigterm)
        self._listens = True

    def request_stop(self) -> None:
        """What SIGTERM does: ask for a checkpoint at the next step boundary."""
        self._stop_requested = True

    def stop_requested(self) -> bool:
        self._announce_if_asks()
        return self._stop_requested

    def announce_saves(self) -> None:
        """Say that this process saves and leaves when it is asked to (SIGTERM), from now on: a job whose code does is
        moved before it has saved anything. Whoever asks `should_checkpoint` or `stop_requested` has said so; a script
        with a handler of its own calls this once, when a save would succeed."""
        if not self._has_announced:
            self._has_announced = True
            self.tell(saves=True)

    def announce_together(self) -> None:
        """Say that all processes of this training, on every machine, stop after the same step when any is asked to: a
        job on several machines is moved only then. `stop_together` says it for whoever calls it."""
        if not self._is_together and self._listens and self.job_id:
            self._is_together = True
            self.tell(stops_together=True)

    def _announce_if_asks(self) -> None:
        """Nobody but a control plane wants to hear it; a process that hears no SIGTERM would promise too much."""
        if self._listens and self.job_id:
            self.announce_saves()

    def resume(self) -> Optional[Resume]:
        """The checkpoint named by ALLPASS_RESUME_DIR, or None.

        The step is ALLPASS_RESUME_STEP, else the number at the end of the folder's name. Raises ValueError when there
        is neither, FileNotFoundError when the folder is missing: starting from zero instead would lose work silently.
        """
        folder = self._environment.get("ALLPASS_RESUME_DIR")
        if not folder:
            return None
        path = Path(folder).absolute()
        if not path.exists():
            raise FileNotFoundError(f"ALLPASS_RESUME_DIR names {folder!r}, which does not exist")
        text = self._environment.get("ALLPASS_RESUME_STEP")
        if text is None:
            found = _TRAILING_NUMBER.search(path.name)
            text = found.group(1) if found else None
        if text is None or not text.isdigit():
            raise ValueError(f"at which step is {folder!r}? Set ALLPASS_RESUME_STEP to a whole number, not {text!r}")
        if self._environment.get("ALLPASS_RESUME_LEARNED") == "1":
            return Resume(path=path, step=0, learned=True)
        if self.saved_step is None:
            self.saved_step = int(text)  # what we resume from is saved already
        return Resume(path=path, step=int(text))

    def parameters(self, **defaults: Any) -> "dict[str, Any]":
        """The parameters file over `defaults`."""
        hint = "parameters given as a list of words are read from sys.argv, with argparse"
        return {**defaults, **self._json_object("ALLPASS_PARAMETERS_FILE", hint)}

    def template(self) -> "dict[str, Any]":
        """The template file."""
        return self._json_object("ALLPASS_TEMPLATE_FILE", "a template is an object")

    def plan(self) -> Optional[Plan]:
        """The plan file; None where nothing was planned."""
        if not self._environment.get("ALLPASS_PLAN_FILE"):
            return None
        told = self._json_object("ALLPASS_PLAN_FILE", "a plan is an object")
        return Plan(**{name: told[name] for name in Plan._fields if name in told})

    def report(self, step: int, **metrics: Any) -> None:
        """Append one line to the metrics file, at once. Floats are written so that they read back as the same bits.

        A value is a number or something that converts to one (a tensor with one element, a numpy scalar). JSON has no
        NaN and no infinity: such a value is left out, and the first one of each name is told on stderr.
        Raises TypeError naming a metric that is no number.
        """
        numbers = self._numbers(metrics)
        self._reported = (int(step), numbers)
        self._append({"step": int(step), **numbers})
        news = self._facts.news()
        if news is not None:
            self._append({"step": int(step), "training": news})

    def describe(self, **facts: Any) -> None:
        """Tell how this training is laid out, so that Allpass learns from it how much memory and time such steps take:
        `micro_batch` (sequences on a GPU at once), `accumulation`, `sequence` (tokens), `checkpointing` (activations
        are recomputed), `sharding` (none, ddp, zero1, zero2, zero3, fsdp). And `total_steps`: the step it ends with, by
        which `allpass show` says when it will be done. Say as much as you know.

        Raises TypeError for a fact that it does not know.
        """
        self._append({"step": max(0, self._reported[0]), "training": layout(facts)})

    def tell(self, **facts: Any) -> None:
        """What the built-in recipe tells the control plane of itself, beside metrics."""
        self._append({"step": max(0, self._reported[0]), "training": facts})

    def link(self, name: str, url: str) -> None:
        """Have a link shown with the job, e.g. `link("wandb", run.url)`; another one of that name takes its place.

        Raises ValueError for one that could not be shown to others: a name of small letters, digits and dashes, and an
        http(s) address without a user's name in it are expected.
        """
        if not is_link(name, url):
            raise ValueError(
                f"expected a name such as 'wandb' and an http:// or https:// address of plain characters, at most "
                f"{LONGEST_URL} of them, with no user's name in it; not {name!r}, {str(url)[:200]!r}"
            )
        self.tell(link={"name": name, "url": url})

    def should_checkpoint(self, step: int) -> bool:
        """Whether to save after `step`: a stop was asked for, or the interval has passed since the last save (at
        first: since the session began). Always False for a step that is saved already. Raises what a save in the
        background raised."""
        self._announce_if_asks()
        self._background.check()
        if self.saved_step == step:
            return False
        return self._stop_requested or self._monotonic_s() - self._saved_at_s >= self._spacing.interval_s

    def save(
        self,
        step: int,
        write: Callable[[Path], None],
        metrics: "Optional[dict[str, Any]]" = None,
        *,
        part: bool = False,
    ) -> Path:
        """Save a checkpoint and announce it; returns its folder, `step-00000040` in the checkpoint directory.

        `write(folder)` fills an empty folder. What it wrote is synced to disk and renamed into place, then the
        `checkpoint` line (with `metrics`) goes to the metrics file: a crash at any moment leaves the previous
        checkpoint the newest one. The newest two are kept. Saving the step that was saved last does nothing.
        Whatever `write` raises passes through, and no checkpoint appears. A save in the background is waited for.

        `part`: this machine writes a part of it, and each of the others another one. Call it on every process at the
        same step: a collective of torch.distributed. All processes of a machine write into one folder. Nothing is
        announced unless all have written: where one raises, the others raise RuntimeError.
        """
        self._background.wait()
        return self._save_part(step, write, metrics) if part else self._save(step, write, metrics)

    def save_parts(self, step: int, write: Callable[[Path], None], metrics: "Optional[dict[str, Any]]" = None) -> None:
        """As `save(part=True)`; but a disk that is full on one of the machines only costs the checkpoint, unless a stop
        was asked for: it is told on stderr, and the next one is tried."""
        from allpass.training.parts import PartNotWritten

        try:
            self.save(step, write, metrics, part=True)
        except (OSError, PartNotWritten) as error:
            is_full = not isinstance(error, OSError) or error.errno == errno.ENOSPC
            if self._stop_requested or not is_full:
                raise
            self._warn_once("disk", f"the checkpoint of step {step} was not saved: {error}")
            self._saved_at_s = self._monotonic_s()

    def _save_part(self, step: int, write: Callable[[Path], None], metrics: "Optional[dict[str, Any]]") -> Path:
        from allpass.training import parts  # it knows this module

        step = int(step)
        if self.saved_step == step and self._checkpoints.path_of(step).is_dir():
            return self._checkpoints.path_of(step)
        if metrics is None and self._reported[0] == step:
            metrics = self._reported[1]
        line = {"step": step, **self._numbers(metrics or {})}
        line[parts.line_of(self._environment)] = self._checkpoints.path_of(step).name
        began_s = self._monotonic_s()
        folder = parts.write_part(self, self._checkpoints, step, write)
        self._spacing.saved(self._monotonic_s() - began_s)
        is_first = parts.is_first_of_machine(self._environment)
        parts.announce(step, (lambda: self._append(line)) if is_first else None)
        if is_first:
            self._checkpoints.prune()
        self.saved_step = step
        self._saved_at_s = self._monotonic_s()
        return folder

    def _save(self, step: int, write: Callable[[Path], None], metrics: "Optional[dict[str, Any]]") -> Path:
        step = int(step)
        if self.saved_step == step and self._checkpoints.path_of(step).is_dir():
            return self._checkpoints.path_of(step)
        if metrics is None and self._reported[0] == step:
            metrics = self._reported[1]
        began_s = self._monotonic_s()
        folder = self._write(step, write)
        self._spacing.saved(self._monotonic_s() - began_s)
        self._append({"step": step, "checkpoint": folder.name, **self._numbers(metrics or {})})
        self._checkpoints.prune()
        self.saved_step = step
        self._saved_at_s = self._monotonic_s()
        return folder

    def save_soon(
        self,
        step: int,
        prepare: "Callable[[], Snapshot]",
        metrics: "Optional[dict[str, Any]]" = None,
        *,
        announced: bool = True,
    ) -> None:
        """Save beside the training, which goes on as soon as `prepare` has returned: a `Snapshot`, whose `write` fills
        the folder later, from copies that the training does not touch.

        One save is under way at a time; a newer one waits, and takes the place of one that waits already. When a stop
        was asked for, this returns when the checkpoint of `step` is announced. An error is raised by the next call of
        this, `should_checkpoint`, `exit_if_stopping` or `finish_saving`; but a full disk only costs a checkpoint in
        between: it is told on stderr, and the next one is tried. `announced=False`: other processes' part of a
        checkpoint that rank 0 announces.
        """
        step = int(step)
        if self._stop_requested:
            self._background.wait(drop_waiting=True)
            if self.saved_step == step:
                return
        if metrics is None and self._reported[0] == step:
            metrics = dict(self._reported[1])
        snapshot = prepare()
        self._saved_at_s = self._monotonic_s()
        is_last = self._stop_requested

        def job() -> None:
            try:
                self._save_snapshot(step, snapshot, metrics, announced=announced)
            except OSError as error:
                if is_last or error.errno != errno.ENOSPC:
                    raise
                self._warn_once("disk", f"the checkpoint of step {step} was not saved, the disk is full: {error}")
            finally:
                snapshot.release()

        self._background.submit(step, job, snapshot.release)
        if is_last:
            self._background.wait()

    def is_saving(self) -> bool:
        """Whether a save is under way in the background."""
        return self._background.is_busy()

    def finish_saving(self) -> None:
        """Return when no save is under way any more. Raises what one raised."""
        self._background.wait()

    @property
    def environment(self) -> "Mapping[str, str]":
        """What this process was told by."""
        return self._environment

    @property
    def job_id(self) -> str:
        """Empty where no job is run."""
        return self._environment.get("ALLPASS_JOB_ID", "")

    @property
    def watch_dir(self) -> Optional[Path]:
        """Where the built-in recipe finds rows of a job that waits for this one's weights, if there is one."""
        folder = self._environment.get("ALLPASS_WATCH_DIR")
        return Path(folder) if folder else None

    @property
    def purpose(self) -> str:
        """`train`, or what else the built-in recipe was started for: `profile`."""
        return self._environment.get("ALLPASS_PURPOSE", "train")

    @property
    def profiles(self) -> bool:
        """Whether the built-in recipe is to look at its task before it trains: once, where a job begins."""
        return self._environment.get("ALLPASS_PROFILES") == "1" and not self._environment.get("ALLPASS_RESUME_DIR")

    @property
    def checkpoint_dir(self) -> Path:
        return self._checkpoints.path

    def _save_snapshot(
        self, step: int, snapshot: "Snapshot", metrics: "Optional[dict[str, Any]]", *, announced: bool
    ) -> None:
        if announced:
            self._save(step, snapshot.write, metrics or {})
        else:
            began_s = self._monotonic_s()
            snapshot.write(self._checkpoints.path)
            self._spacing.saved(self._monotonic_s() - began_s)
            self.saved_step = step

    def _write(self, step: int, write: Callable[[Path], None]) -> Path:
        """Should the disk be full, checkpoints that are older than the newest make room, and it is tried once more."""
        try:
            return self._checkpoints.write(step, write)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self._checkpoints.prune(keep=1):
                raise
            return self._checkpoints.write(step, write)

    def make_room(self) -> bool:
        """Delete checkpoints on this disk but the newest; whether there was one to delete."""
        return self._checkpoints.prune(keep=1)

    def exit_if_stopping(self, step: int) -> None:
        """End the process (SystemExit, code 75) when a stop was asked for and `step` is the one saved last.

        A stop that comes between `should_checkpoint` and this call is served one step later, so nothing is ever lost.
        Code 75 says "not finished": Allpass resumes the job from the checkpoint.
        """
        if not (self._leaves[1] if self._leaves[0] == step else self._stop_requested):
            return
        self._background.wait()  # it may be the one of this very step
        if self.saved_step != step:
            return
        if "ALLPASS_JOB_ID" not in self._environment:
            print(f"allpass: stopped; go on with ALLPASS_RESUME_DIR={self._checkpoints.path_of(step)}", file=sys.stderr)
        sys.stdout.flush()
        raise SystemExit(EXIT_STOPPED)

    def leaves_after(self, step: int, *, stops: bool) -> None:
        """What all processes of a training have agreed on: whether they leave after this step. One that is asked to
        stop right then goes on with the others, for one step more."""
        self._leaves = (int(step), stops)

    def output_dir(self) -> Path:
        """The output directory, which exists."""
        folder = Path(self._environment.get("ALLPASS_OUTPUT_DIR", LOCAL_OUTPUT_DIR)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _json_object(self, variable: str, hint: str) -> "dict[str, Any]":
        path = self._environment.get(variable)
        if not path:
            return {}
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError(f"{variable} ({path}) holds {content!r}: {hint}")
        return content

    def _numbers(self, metrics: "Mapping[str, Any]") -> "dict[str, Any]":
        numbers: "dict[str, Any]" = {}
        for name, value in metrics.items():
            if name in ("step", "checkpoint"):
                raise TypeError(f"{name!r} has a meaning of its own in the metrics file: choose another name")
            number = _number(name, value)
            if isinstance(number, float) and not math.isfinite(number):
                self._warn_once(name, f"{name} is {number}: left out of the metrics, as JSON cannot say it")
                continue
            numbers[name] = number
        return numbers

    def _append(self, line: "dict[str, Any]") -> None:
        """One write call per line: a reader never meets half a line of ours, nor two mixed."""
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        self._metrics_file.parent.mkdir(parents=True, exist_ok=True)
        with self._metrics_file.open("ab", buffering=0) as file:
            file.write(data)

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            print(f"allpass: {message}", file=sys.stderr)


def _number(name: str, value: Any) -> Any:
    """`value` as a plain int or float. Raises TypeError."""
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError(f"metric {name!r} is {value!r}: report a number")
    try:
        single = value.item() if hasattr(value, "item") else value  # a tensor or numpy scalar
        return int(single) if isinstance(single, int) else float(single)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"metric {name!r} is {type(value).__name__}, which is no single number: {error}") from error
