"""A guaranteed job has the GPU of a spot job that holds 200 MB of state: how long that takes, and what it loses.

    .venv/bin/python -m benchmarks.eviction [--rounds 20] [--all] [--mb 200]

A stack without any cloud, and one host of a pool with one (emulated) GPU; everything else is real. A spot job trains
there: each of its steps changes all of its state, and it saves when it is asked to. In each round a guaranteed job is
submitted. The spot job is asked to save, its 200 MB are stored, its process ends, and the other one begins. When that
has ended, the spot job goes on from where it was. The value is the mean time from the request to the end of the spot
job's run, its checkpoint stored; `detail` has the rest: until the guaranteed job's first line, steps that were lost,
and processes that had to be killed. `--all`: 300 rounds. The last line is one JSON object.
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
from typing import Any

import allpass
from app.stack.supervisor import Clouds, Stack, StackOptions
from benchmarks.pools import OwnHost

MEAN_GOAL_S, P95_GOAL_S = 3.0, 10.0
_LIMIT_S = 300.0
_SPOT = """\
import os, time
from allpass import training

options = training.parameters(mb=200, step_ms=50)
found = training.resume()
step = found.step if found else 0
training.announce_saves()
print("begins", step, flush=True)
while True:
    time.sleep(options["step_ms"] / 1000)  # all of the state is new after each step
    step += 1
    training.report(step, progress=step)
    if training.should_checkpoint(step):
        training.save(step, lambda folder: (folder / "state").write_bytes(os.urandom(options["mb"] << 20)))
    training.exit_if_stopping(step)
"""
_GUARANTEED = 'import time\nprint("begins", time.time(), flush=True)\n'


@dataclass
class Rounds:
    """Seconds of each round, from the request to leave; what the spot job lost."""

    left: list[float] = field(default_factory=list)
    first_line: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)  # of the guaranteed job, from its submission
    lost_steps: list[int] = field(default_factory=list)
    killed: int = 0


def play(folder: Path, rounds: int, mb: int) -> Rounds:
    settings = {"ALLPASS_SPOT_MIN_RUN_S": "0"}
    stack = Stack(StackOptions(folder / "data", port=0, clouds=Clouds.NONE, settings=settings), tell=lambda _: None)
    stack.start()
    try:
        told = json.loads(stack.layout.client_file.read_text())
        with allpass.Client(told["url"], told["api_key"]) as client, OwnHost(folder / "host", client):
            return _play(client, folder, rounds, mb)
    finally:
        stack.stop()


def _play(client: allpass.Client, folder: Path, rounds: int, mb: int) -> Rounds:
    (folder / "spot.py").write_text(_SPOT)
    (folder / "asks.py").write_text(_GUARANTEED)
    of_spot = allpass.build("spot", "ada", code=str(folder / "spot.py"), client=client)
    asks = allpass.build("asks", "bob", code=str(folder / "asks.py"), client=client)
    spot = of_spot.run(template={"priority_class": "spot"}, parameters={"mb": mb}, soft_deadline="6hr")
    found = Rounds()
    try:
        for _ in range(rounds):
            _round(spot, asks, found)
    finally:
        spot.cancel()
    return found


def _round(spot: allpass.Job, asks: allpass.App, found: Rounds) -> None:
    _wait(lambda: spot.status() == "running" and _begun(spot) == 1 + len(found.left), "the spot job's first step")
    time.sleep(1)
    submitted_s = time.time()
    job = asks.run(soft_deadline="6hr")
    if job.wait(timeout=_LIMIT_S, poll_s=0.05).status != "succeeded":
        sys.exit(f"{job.id} failed: {job.info().reason}")
    events = [(event.kind, event.at.timestamp(), event.data) for event in spot.events()]
    asked_s = max(at_s for kind, at_s, _ in events if kind == "checkpointing")
    first_line_s = float(" ".join(job.logs()).split()[1])
    found.left.append(max(at_s for kind, at_s, _ in events if kind == "evicted") - asked_s)
    found.first_line.append(first_line_s - asked_s)
    found.waited.append(first_line_s - submitted_s)
    found.killed += not [data for kind, _, data in events if kind == "evicted"][-1]["saved"]
    before = max(point.step for point in spot.metrics())
    _wait(lambda: _begun(spot) == 1 + len(found.left), "the spot job's next run")
    found.lost_steps.append(before - _lines(spot)[-1])


def _lines(spot: allpass.Job) -> list[int]:
    """From which step on each of its runs has begun."""
    return [int(line.split()[1]) for line in spot.logs() if line.startswith("begins")]


def _begun(spot: allpass.Job) -> int:
    return len(_lines(spot))


def _wait(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + _LIMIT_S
    while not holds():
        if time.monotonic() > end_s:
            sys.exit(f"waited {_LIMIT_S:.0f} s for {what}")
        time.sleep(0.05)


def result_of(found: Rounds, mb: int) -> dict[str, Any]:
    p95 = sorted(found.left)[max(0, round(0.95 * len(found.left)) - 1)]
    detail = {
        "rounds": len(found.left),
        "state_mb": mb,
        "p95_s": round(p95, 3),
        "p95_goal_s": P95_GOAL_S,
        "longest_s": round(max(found.left), 3),
        "to_the_first_line_s": round(statistics.mean(found.first_line), 3),
        "from_submission_to_the_first_line_s": round(statistics.mean(found.waited), 3),
        "most_steps_lost": max(found.lost_steps),
        "killed": found.killed,
    }
    value = round(statistics.mean(found.left), 3)
    return {"name": "eviction", "value": value, "goal": MEAN_GOAL_S, "unit": "seconds", "detail": detail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--all", action="store_true", help="300 rounds")
    parser.add_argument("--mb", type=int, default=200, help="that the spot job saves")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="allpass-eviction-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        found = play(folder, 300 if options.all else options.rounds, options.mb)
    print(json.dumps(result_of(found, options.mb)))


if __name__ == "__main__":
    main()
