"""The metrics of a job, told to a run of Weights & Biases as well.

The run has one id on all machines of the job. Each machine hears from W&B which step is next there, and tells nothing
before it, so no step is told twice. The library lives in a process of its own (`wandb_writer.py`): whatever it does,
hangs or crashes at is not this job's concern.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from allpass.recipe.settings import Recipe
from allpass.training.links import is_link
from allpass.training.session import Session

LEAVE_S, END_S = 10.0, 30.0  # for what is not sent yet: at a stop the next machine waits
_MOST_WAITING = 10_000  # rows
_LONGEST_WHY = 300
_KEY = "WANDB_API_KEY"
_COMMAND = (sys.executable, "-m", "workers.trainer.wandb_writer")
_NAMES = {  # as the events of a fine-tuning have them
    "loss": "train_loss",
    "accuracy": "train_mean_token_accuracy",
    "eval_loss": "valid_loss",
    "eval_accuracy": "valid_mean_token_accuracy",
}
_LEFT_OUT = ("tokens",)
Row = tuple[int, dict[str, float]]


class Tracking:
    """Of one job; where its recipe names no run, of nothing. No call waits for W&B but `close`, and none raises."""

    def __init__(self, recipe: Recipe, session: Session, command: tuple[str, ...] = _COMMAND) -> None:
        self._session = session
        self._rows: queue.Queue[Row | None] = queue.Queue(_MOST_WAITING)
        self._held: Row | None = None
        self._has_told_why = False
        self._process: subprocess.Popen[bytes] | None = None
        if recipe.wandb is None:
            return
        try:
            self._begin(recipe, command)
        except OSError as error:
            self._tell_why(f"its process could not be started: {error}")

    def report(self, step: int, values: Mapping[str, float], *, is_whole: bool = True) -> None:
        """A step's values. One that is not whole yet is kept until it is; left before that, it is told by the next
        machine."""
        if self._process is None:
            return
        row = (step, {_NAMES.get(name, name): value for name, value in values.items() if name not in _LEFT_OUT})
        if self._held is not None and self._held[0] != step:
            self._put(self._held)
        self._held = None if is_whole else row
        if is_whole:
            self._put(row)

    def close(self, *, is_left: bool) -> None:
        """Wait a moment until all is sent; `is_left`: the job goes on elsewhere."""
        process = self._process
        if process is None:
            return
        self._process = None
        if self._held is not None and not is_left:
            self._put(self._held)
        self._put(None)
        try:
            process.wait(LEAVE_S if is_left else END_S)
        except subprocess.TimeoutExpired:
            self._tell_why("it was not through with them when the job had to go on")
            process.kill()
            process.wait()
        self._reader.join(1.0)

    def _begin(self, recipe: Recipe, command: tuple[str, ...]) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}
        environ["ALLPASS_HOOKS"] = "off"
        self._process = process = subprocess.Popen(  # noqa: S603 - our own
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,  # a request to stop is this process's to heed
        )
        config = {name: value for name, value in recipe.parameters().items() if name != "wandb"}
        first = {**dict(recipe.wandb or {}), "config": config}
        self._writer = threading.Thread(target=self._write, args=(process, first), daemon=True)
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._writer.start()
        self._reader.start()

    def _put(self, row: Row | None) -> None:
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self._tell_why(f"it is {_MOST_WAITING} steps behind: later ones are left out")
            if row is None and self._process is not None:
                self._process.kill()

    def _write(self, process: subprocess.Popen[bytes], first: dict[str, Any]) -> None:
        """In a thread, for a pipe may be full. The end of the rows is the end of the pipe."""
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin as pipe:
            _line(pipe.write, first)
            pipe.flush()
            while (row := self._rows.get()) is not None:
                _line(pipe.write, {"step": row[0], "values": row[1]})
                pipe.flush()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """What it tells: the address of the run, or why nothing arrives."""
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError, AttributeError):
                told = json.loads(line)
                if told.get("why"):
                    self._tell_why(str(told["why"]))
                if is_link("wandb", told.get("url")):
                    self._session.link("wandb", told["url"])
                    print(f"training: metrics go to {told['url']} from step {told.get('step')} on", flush=True)
        if process.wait() != 0 and not self._has_told_why:
            self._tell_why(f"its process ended with code {process.returncode}")

    def _tell_why(self, why: str) -> None:
        """Once: the training goes on all the same."""
        if self._has_told_why:
            return
        self._has_told_why = True
        key = os.environ.get(_KEY) or "\0"
        plain = " ".join(why.replace(key, "***").split())[:_LONGEST_WHY]
        print(f"training: metrics do not reach W&B: {plain}", flush=True)
        with contextlib.suppress(OSError):
            self._session.tell(untracked=f"W&B: {plain}")


def _line(write: Callable[[bytes], Any], told: Mapping[str, Any]) -> None:
    write(json.dumps(told, default=str).encode() + b"\n")
