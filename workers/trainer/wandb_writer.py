"""The process that holds the library of Weights & Biases (`tracking.py`): lines of JSON in, the run's address or what
is wrong out. It ends when its input does and all is sent."""

from __future__ import annotations

import collections
import json
import os
import sys
import tempfile
import threading
from typing import Any, BinaryIO

_INIT_S = 60
_LAST_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0
_MOST_KEPT = 100_000  # rows, while W&B is away
_FOLDERS = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR")
_VARIABLES = {
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_X_DISABLE_STATS": "true",
    "WANDB_X_DISABLE_META": "true",
    "WANDB__DISABLE_STATS": "true",
    "WANDB__DISABLE_META": "true",
}


class ToldRows:
    """What there is to tell, read as it comes: whoever writes it never waits."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._rows: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MOST_KEPT)
        self._news = threading.Condition()
        self._is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any] | None:
        """The next one; None when there will be no more."""
        with self._news:
            self._news.wait_for(lambda: self._rows or self._is_over)
            return self._rows.popleft() if self._rows else None

    def over_within(self, timeout_s: float) -> bool:
        """Whether the job ends meanwhile."""
        with self._news:
            return self._news.wait_for(lambda: self._is_over, timeout_s)

    def _read(self) -> None:
        for line in self._pipe:
            with self._news:
                self._rows.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()
        last = threading.Timer(_LAST_S, os._exit, [1])  # whoever waits, waits no longer than that
        last.daemon = True
        last.start()


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # what the library says is said to nobody: who knows what it says
    os.dup2(quiet, 2)

    def tell(**told: Any) -> None:
        out.write(json.dumps(told) + "\n")
        out.flush()

    first = json.loads(sys.stdin.buffer.readline())
    rows = ToldRows(sys.stdin.buffer)
    os.environ.update(_VARIABLES)
    with tempfile.TemporaryDirectory(prefix="wandb-") as folder:
        tempfile.tempdir = folder
        os.environ.update({"TMPDIR": folder, **dict.fromkeys(_FOLDERS, folder)})
        try:
            import wandb
        except ImportError as error:
            tell(why=f"the library wandb cannot be loaded on this machine: {error}")
            return
        run = _begun(wandb, first, rows, tell)
        if run is None:
            return
        after = int(getattr(run, "starting_step", 0) or 0)
        tell(url=run.url, step=after)
        _copy(run, rows, after)


def _begun(wandb: Any, first: dict[str, Any], rows: ToldRows, tell: Any) -> Any:
    """The run, as soon as W&B can be asked; None where that makes no sense, or the job has ended."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return wandb.init(
                project=first["project"],
                entity=first.get("entity"),
                name=first.get("name"),
                tags=first.get("tags"),
                id=first.get("run"),
                resume="allow" if first.get("run") else None,
                config=first["config"],
                allow_val_change=True,
                mode="online",
                settings=wandb.Settings(init_timeout=_INIT_S),
            )
        except Exception as error:  # of whatever kind the library has
            tell(why=f"{type(error).__name__}: {error}")
            if _is_final(wandb, error) or rows.over_within(pause_s):
                return None
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _is_final(wandb: Any, error: Exception) -> bool:
    """Whether the same key and names will be refused again."""
    refused = (wandb.errors.AuthenticationError, wandb.errors.UsageError)
    return isinstance(error, (*refused, ValueError, TypeError)) or "permission" in str(error).lower()


def _copy(run: Any, rows: ToldRows, after: int) -> None:
    """All rows from the step `after` on: earlier ones are there, from this job's machine before."""
    while (row := rows.next()) is not None:
        if row["step"] >= after:
            run.log(row["values"], step=row["step"])
    run.finish()


if __name__ == "__main__":
    main()
