"""A follower by a process that has imported the trainer: see `forking.py`.

`followers.py SOCKET`. A follower may have a fault, as its environment says: FAULT is `RANK STEP WHAT`, where the first
that takes that part of that step is lost, or `RANK STEP+ WHAT`, where all are from that step on. Several have a `;`
between them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import peft  # noqa: F401 - imported here so that every child has it at once
import torch
from transformers import LlamaForCausalLM  # noqa: F401 - transformers loads its parts when they are named

from allpass.training.elastic import ranks
from tests.training import forking
from tests.training.reducing import older_if_asked, reduce_if_asked
from workers.trainer import follower, loop, tasks


def run(argv: list[str]) -> None:
    """As `python -m workers.trainer.follower`."""
    for fault in filter(None, os.environ.get("FAULT", "").split(";")):
        break_by(fault)
    reduce_if_asked()
    older_if_asked()
    follower.main()


def break_by(fault: str) -> None:
    """Have one rank do something else in the loss of a step."""
    rank, step, what = fault.split()
    now: dict[str, Any] = {"rank": 0, "step": 0}
    steps = range(int(step[:-1]), sys.maxsize) if step.endswith("+") else (int(step),)
    taken, joined = loop.Loop._take, ranks.ManyRanks.__init__
    asked = tasks._loss

    def take(self: Any, number: int) -> None:
        now["step"] = number
        taken(self, number)

    def join(self: Any, own: int, *more: Any, **named: Any) -> None:
        now["rank"] = own
        joined(self, own, *more, **named)

    def broken(*words: Any) -> Any:
        computed = asked(*words)

        def loss(model: Any, batch: Any) -> Any:
            if now["rank"] == int(rank) and now["step"] in steps and torch.is_grad_enabled():
                act(what, batch, again=step.endswith("+"))
            return computed(model, batch)

        return loss

    if what in WAYS:
        told = getattr(ranks.ManyRanks, WAYS[what])

        def breaks(self: Any, own: Any) -> list[Any]:
            if now["rank"] == int(rank) and now["step"] in steps and (step.endswith("+") or is_first(Path("lost"))):
                raise ranks.PeerLost("connection reset by peer")
            found: list[Any] = told(self, own)
            return found

        setattr(ranks.ManyRanks, WAYS[what], breaks)
    loop.Loop._take = take  # type: ignore[method-assign]
    ranks.ManyRanks.__init__ = join  # type: ignore[method-assign]
    tasks._loss = broken


def act(what: str, batch: Any, *, again: bool) -> None:
    """What goes wrong."""
    if what == "raise":
        raise ValueError("no such number")
    if what.startswith("memory") and len(batch.ids) > int(what.removeprefix("memory")):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if what in LOSSES and (again or is_first(Path("lost"))):
        LOSSES[what]()


def is_first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


WAYS = {"part": "exchange", "sum": "all_bytes"}  # which break in the middle of a step
LOSSES = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "hang": signal.pause,
    "halt": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "slow": lambda: time.sleep(1.0),  # what a part takes with a larger model
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    forking.serve(sys.argv[1], run)
