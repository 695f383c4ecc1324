"""A process that takes its part of another one's training: `python -m workers.trainer.follower`, started by `gang`.

What to do comes as lines of JSON through standard input, whose end is the end of this process, whatever it does then:
first what to load; then, each time that other processes take part, with whom to meet. It loads the same model and rows,
takes the same steps, and tells nobody anything.
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
from queue import Queue
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
    task = json.loads(sys.stdin.buffer.readline())
    orders: Queue[dict[str, Any]] = Queue()
    ended = threading.Thread(target=_hear, args=(orders,), daemon=True)
    ended.start()
    warnings.filterwarnings("ignore", category=FutureWarning)  # as in the first process
    try:
        follow(task, orders)
    except Exception:  # of whatever library
        ended.join(_WAIT_S)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    ended.join()


def follow(task: dict[str, Any], orders: Queue[dict[str, Any]]) -> None:
    """The steps of the training from when the first process has it take part."""
    from workers.trainer import given_gpus, loop, rows
    from workers.trainer.main import be_quiet
    from workers.trainer.ranks import ManyRanks, PeerLost
    from workers.trainer.stillness import Presence

    be_quiet()
    session = Silent()
    given_gpus.check(session)  # a processor in the place of its GPU would not find the others

    def join(device: Any) -> ManyRanks:
        Path(task["ready"]).touch()
        while True:
            order = orders.get()
            rank, count = order["rank"], order["count"]
            presence = Presence(Path(order["presence"]), rank, count)
            with contextlib.suppress(PeerLost):  # another order comes, or the end
                return ManyRanks(
                    rank, count, Path(order["meeting"]), device, presence, is_given_up=lambda: not orders.empty()
                )

    loop.train(Recipe.of(task["recipe"]), rows.load(Path(task["folder"])), session, join)


def _hear(orders: Queue[dict[str, Any]]) -> None:
    with contextlib.suppress(OSError):
        for line in sys.stdin.buffer:
            orders.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
