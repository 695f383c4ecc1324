"""A process that takes its part of another one's training, and is started by that one (`gang`).

What to do comes as lines of JSON through standard input, whose end is the end of this process, whatever it does then:
first what to load; then, each time that other processes take part, with whom to meet. It takes the same steps as the
first process, and tells nobody anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from queue import Queue
from typing import Any, Callable, Dict

from allpass.training.elastic import given_gpus
from allpass.training.elastic.ranks import Join, ManyRanks, PeerLost
from allpass.training.elastic.stillness import Presence
from allpass.training.session import Session
from allpass.training.silent import Silent

_WAIT_S = 2.0  # for the first process to end for the same reason


def serve(follow: Callable[["dict[str, Any]", Session, Join], None]) -> None:
    """Follow until the first process lets this one go; the process ends with it. `follow` has what to load, a session,
    and how to come to the others; an error of its ends the process with code 1."""
    task = json.loads(sys.stdin.buffer.readline())
    orders: "Queue[Dict[str, Any]]" = Queue()
    ended = threading.Thread(target=_hear, args=(orders,), daemon=True)
    ended.start()
    session = Silent()
    try:
        given_gpus.check(session)  # a processor in the place of its GPU would not find the others
        follow(task, session, _joining(Path(task["ready"]), orders))
    except Exception:  # of whatever library
        ended.join(_WAIT_S)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    ended.join()


def _joining(ready: Path, orders: "Queue[Dict[str, Any]]") -> Join:
    def join(device: Any) -> ManyRanks:
        ready.touch()
        while True:
            order = orders.get()
            rank, count = order["rank"], order["count"]
            presence = Presence(Path(order["presence"]), order.get("slot", rank), order.get("slots", count))
            with contextlib.suppress(PeerLost):  # another order comes, or the end
                return ManyRanks(
                    rank, count, order["meeting"], device, presence, is_given_up=lambda: not orders.empty()
                )

    return join


def _hear(orders: "Queue[Dict[str, Any]]") -> None:
    with contextlib.suppress(OSError):
        for line in sys.stdin.buffer:
            orders.put(json.loads(line))
    os._exit(0)
