"""A job on four GPUs gives one to another job and has it back, on a whole stack: how long each of them waits for that.

    .venv/bin/python -m benchmarks.resizes --rounds 10

Everything is real but the GPUs: a fine-tuning by four processes on one emulated machine is asked to go on with three,
and at the same moment a script is submitted that is to run beside it. It waits until the training has left the GPU, is
placed there, and writes its first line. When it has ended the fine-tuning is asked to take the GPU back. Prints one
JSON object last: `value` is the median from both requests to the script's first line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import allpass
from allpass.client import Client
from allpass.errors import Conflict
from allpass.job import Job
from app.stack.supervisor import Stack, StackOptions
from tests.training import tiny

GOAL_S = 2.0
_LOOK_S = 0.02
_PATIENCE_S = 300.0
_SCRIPT = """\
import json, os, time
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
    metrics.write(json.dumps({"step": 1, "first_line_s": time.time()}) + "\\n")
"""
_BESIDE = {"lends": "a-gpu"}


@dataclass
class Times:
    """Seconds of each round: until the GPU was free, until the script's first line, until the training had it back."""

    left: list[float] = field(default_factory=list)
    first_line: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)

    def medians(self) -> dict[str, list[float]]:
        return {name: [round(statistics.median(all_), 3), round(max(all_), 3)] for name, all_ in vars(self).items()}


def until(what: str, holds: Callable[[], object]) -> float:
    """When it was so, by the clock. Raises TimeoutError saying what was waited for."""
    end_s = time.time() + _PATIENCE_S
    while not holds():
        if time.time() > end_s:
            raise TimeoutError(f"waited {_PATIENCE_S:.0f} s for {what}")
        time.sleep(_LOOK_S)
    return time.time()


def trains(job: Job) -> bool:
    """Whether its training has said which GPUs it uses: then more than its machine has are refused for want of room."""
    status = job.status()
    if status == "failed":
        raise RuntimeError(f"the fine-tuning failed: {job.info().message}")
    if status != "running":  # a job that waits takes any number
        return False
    try:
        job.resize(8)
    except Conflict as error:
        return error.code == "no_room"
    return False


def uses(client: Client, job: Job) -> int:
    """How many GPUs its training has said that it uses last."""
    told = [event.data for event in client.events(job.id) if event.kind == "gpus_changed"]
    return len(told[-1]["gpu_indices"]) if told else 4


def play(client: Client, folder: Path, rounds: int) -> Times:
    model = tiny.shared_llama(folder / "model")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}+1=", "completion": str(n + 1)}) + "\n" for n in range(24)))
    (folder / "first_line.py").write_text(_SCRIPT)
    long = allpass.finetune(
        model, rows, steps=1_000_000, batch_size=8, micro_batch=2, precision="fp32", client=client, user_name="lender",
        template={"gpu": {"count": 4, "type": "A100"}, "labels": _BESIDE, "start": "when-cheap"},
    )  # fmt: skip
    app = allpass.build("asks", "asker", code=str(folder / "first_line.py"), client=client)
    until("the fine-tuning's first step", lambda: trains(long))
    times = Times()
    try:
        for _ in range(rounds):
            _round(client, long, app, times)
    finally:
        long.cancel()
    return times


def _round(client: Client, long: Job, app: allpass.App, times: Times) -> None:
    asked_s = time.time()
    long.resize(3)
    beside = {"gpu": {"count": 1, "type": "A100"}, "placement": {"affinity": _BESIDE}}
    short = app.run(soft_deadline="1h", template=beside)
    assert isinstance(short, Job)
    times.left.append(until("three GPUs", lambda: uses(client, long) == 3) - asked_s)
    short.wait(timeout=_PATIENCE_S, poll_s=_LOOK_S)
    times.first_line.append(next(iter(client.metrics(short.id))).values["first_line_s"] - asked_s)
    until("room", lambda: _takes_back(long))
    asked_s = time.time()
    times.back.append(until("four GPUs", lambda: uses(client, long) == 4) - asked_s)


def _takes_back(job: Job) -> bool:
    try:
        job.resize(4)
    except Conflict as error:
        if error.code not in ("no_room", "conflict"):
            raise
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="allpass-bench-") as folder:
        Path(folder).chmod(0o755)  # jobs run as users of their own, and read the model
        stack = Stack(StackOptions(Path(folder) / "data", port=0, cloud_speed=0), tell=print)
        try:
            stack.start()
            connection = json.loads(stack.layout.client_file.read_text())
            with Client(connection["url"], connection["api_key"]) as client:
                times = play(client, Path(folder), rounds)
        finally:
            stack.stop()
    value = statistics.median(times.first_line)
    detail = {"rounds": rounds, "median_and_longest_s": times.medians()}
    print(json.dumps({"name": "resizes", "value": round(value, 3), "goal": GOAL_S, "unit": "s", "detail": detail}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
