"""A process that takes its part of another one's training: `python -m workers.trainer.follower`, started by `gang`.

What to do comes as a line of JSON through standard input, whose end is the end of this process, whatever it does then.
It loads the same model and rows, takes the same steps, and tells nobody anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

from allpass.recipe.settings import Recipe
from allpass.training.session import Session

_WAIT_S = 2.0  # for the first process to end for the same reason


class Silent(Session):
    """A job's session in a process that only follows: what it is told counts, and it says nothing."""

    def stop_requested(self) -> bool:
        return False

    @property
    def watch_dir(self) -> None:
        return None

    def _append(self, line: dict[str, Any]) -> None:
        """The first process has said it."""


def main() -> None:
    order = json.loads(sys.stdin.buffer.readline())
    ended = threading.Thread(target=_await_end, daemon=True)
    ended.start()
    warnings.filterwarnings("ignore", category=FutureWarning)  # as in the first process
    try:
        follow(order)
    except Exception:  # of whatever library
        ended.join(_WAIT_S)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    ended.join()


def follow(order: dict[str, Any]) -> None:
    """All steps of the training."""
    from workers.trainer import given_gpus, loop, rows
    from workers.trainer.main import be_quiet
    from workers.trainer.ranks import ManyRanks
    from workers.trainer.stillness import Presence

    be_quiet()
    session = Silent()
    given_gpus.check(session)  # a processor in the place of its GPU would not find the others

    def join(device: Any) -> ManyRanks:
        presence = Presence(Path(order["presence"]), order["rank"], order["count"])
        return ManyRanks(order["rank"], order["count"], Path(order["meeting"]), device, presence)

    loop.train(Recipe.of(order["recipe"]), rows.load(Path(order["folder"])), session, join)


def _await_end() -> None:
    with contextlib.suppress(OSError):
        sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
