"""A program that has imported the trainer once and forks a follower for each `follower_client.py`: loading torch for
every process of every training would take most of the time of these tests.

`followers.py SOCKET`. A follower may have a fault, as its environment says: FAULT is `RANK STEP WHAT`, where the first
that takes that part of that step is lost, or `RANK STEP+ WHAT`, where all are from that step on. Several have a `;`
between them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import peft  # noqa: F401 - imported here so that every child has it at once
import torch
from transformers import LlamaForCausalLM  # noqa: F401 - transformers loads its parts when they are named

from allpass.training.elastic import ranks
from tests.training.reducing import reduce_if_asked
from workers.trainer import follower, loop, tasks


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen(64)
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            with client:
                if os.fork() == 0:
                    serve(client)


def serve(client: socket.socket) -> None:
    """Fork once more, wait for the child and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    order = json.loads(data)
    child = os.fork()
    if child == 0:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        client.close()
        os.environ.clear()
        os.environ.update(order["environ"])
        os.chdir(order["cwd"])
        run()
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, client], [], [])[0]:  # whoever stands for it was killed
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):  # it is not waited for any more
        client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def run() -> None:
    """As `python -m workers.trainer.follower`."""
    sys.stdin = os.fdopen(0, "r")
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    code = 1
    try:
        for fault in filter(None, os.environ.get("FAULT", "").split(";")):
            break_by(fault)
        reduce_if_asked()
        follower.main()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


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

    if what == "part":
        told = ranks.ManyRanks.all_bytes

        def all_bytes(self: Any, own: Any) -> list[Any]:
            if now["rank"] == int(rank) and now["step"] in steps and (step.endswith("+") or is_first(Path("lost"))):
                raise ranks.PeerLost("connection reset by peer")
            return told(self, own)

        ranks.ManyRanks.all_bytes = all_bytes  # type: ignore[method-assign]
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


LOSSES = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "hang": signal.pause,
    "halt": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "slow": lambda: time.sleep(1.0),  # what a part takes with a larger model
}


if __name__ == "__main__":
    main()
