"""A job on two machines: how soon it begins, and how soon it goes on after one of its processes has died.

    .venv/bin/python -m benchmarks.gangs [--rounds 10] [--moves 3]

A stack without any cloud, and three hosts of a pool with one (emulated) GPU each; everything else is real, the
processes of torch.distributed (gloo) included. In each round a job on two machines is submitted, saves every second,
and one of its two processes is killed. The value is the mean time from that death to the next step of the job. `detail`
has the rest: from the submission to the first step, and, of a job that is paused and resumed at once, from the last
step before to the first one after. The same is measured of moves: on a second stack with the local cloud, the job
begins on two machines of that, two hosts join a pool, and it goes there by itself. The losses of all steps are those of
a job that nobody has disturbed, or it stops with an error. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import allpass
from app.stack.supervisor import Clouds, Stack, StackOptions
from benchmarks.pools import OwnHost

GOAL_S = 10.0
_LIMIT_S = 300.0
_SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "two_machines.py"
_PARAMETERS = {"steps": 300, "step_ms": 40}
_TEMPLATE: dict[str, Any] = {"nodes": 2, "checkpoint_interval_s": 1}
_FIRST_STEPS = 30  # before it is disturbed
_MOVED = {"steps": 2_000, "step_ms": 40}
_WRAPPED = """\
import json, os, runpy
path = os.environ["ALLPASS_PARAMETERS_FILE"]
with open(path) as file:
    given = json.load(file)
if os.environ.get("ALLPASS_RESUME_DIR"):  # it has moved: the rest of it is not what is measured
    with open(path, "w") as file:
        json.dump({**given, "step_ms": 0}, file)
runpy.run_path("two_machines.py", run_name="__main__")
"""
_RULES = {"least_run_ms": 1_000, "move_pause_share": 0.5, "chase_pause_share": 0.5}
_MOVES = {
    "ALLPASS_POLICY": "allpass",
    "ALLPASS_POLICY_RULES": json.dumps(_RULES),
    "ALLPASS_MOVE_SAVE_S": "0.5",
    "ALLPASS_MOVE_LOAD_S": "0.5",
    "ALLPASS_MOVE_PREPARE_S": "0.5",
    "ALLPASS_PRICES_S": "1",  # how soon it is seen that hosts have joined
}


@dataclass
class Rounds:
    """Seconds of each round. `losses`: by step, of a job that nobody disturbed."""

    began: list[float] = field(default_factory=list)
    went_on: list[float] = field(default_factory=list)
    paused: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    repeated_steps: list[int] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)


def play(folder: Path, rounds: int) -> Rounds:
    stack = Stack(StackOptions(folder / "data", port=0, clouds=Clouds.NONE), tell=lambda _: None)
    stack.start()
    try:
        told = json.loads(stack.layout.client_file.read_text())
        with ExitStack() as opened:
            client = opened.enter_context(allpass.Client(told["url"], told["api_key"]))
            for name in ("one", "two", "three"):
                opened.enter_context(OwnHost(folder / name, client, name))
            return _play(client, rounds)
    finally:
        stack.stop()


def _play(client: allpass.Client, rounds: int) -> Rounds:
    app = allpass.build("two-machines", "ada", code=str(_SCRIPT), client=client)
    found = Rounds()
    found.losses = _losses(_ended(_submitted(app, step_ms=0)))
    for number in range(rounds):
        submitted_s = time.time()
        job = _submitted(app)
        _await_steps(job)
        found.began.append(_moments(job)[0] - submitted_s)
        _kill_one(job, number % 2, found)
        if _losses(_ended(job)) != found.losses:
            sys.exit(f"the losses of {job.id} differ from those of a job that nobody has disturbed")
    job = _submitted(app)
    _await_steps(job)
    job.pause()
    _wait(lambda: job.status() == "paused", f"the pause of {job.id}")
    last_s = _moments(job)[-1]
    job.resume()
    _wait(lambda: _moments(job)[-1] > last_s, f"the next step of {job.id}")
    found.paused.append(next(at_s for at_s in _moments(job) if at_s > last_s) - last_s)
    if _losses(_ended(job)) != found.losses:
        sys.exit(f"the losses of {job.id} differ from those of a job that nobody has disturbed")
    return found


def play_moves(folder: Path, moves: int) -> list[float]:
    """Seconds from the last step on two machines of a cloud to the first one on two hosts of a pool."""
    stack = Stack(StackOptions(folder / "moves", port=0, cloud_speed=0.02, settings=_MOVES), tell=lambda _: None)
    stack.start()
    try:
        told = json.loads(stack.layout.client_file.read_text())
        with allpass.Client(told["url"], told["api_key"]) as client:
            code = folder / "code"
            code.mkdir()
            (code / "train.py").write_text(_WRAPPED)
            (code / _SCRIPT.name).write_bytes(_SCRIPT.read_bytes())
            app = allpass.build("moves", "ada", code=code, client=client)
            losses = _losses(_ended(_submitted(app, **_MOVED | {"step_ms": 0})))
            return [_moved(client, app, folder / f"moved-{number}", losses) for number in range(moves)]
    finally:
        stack.stop()


def _moved(client: allpass.Client, app: allpass.App, folder: Path, losses: dict[int, float]) -> float:
    job = _submitted(app, **_MOVED)
    _await_steps(job)
    folder.mkdir(mode=0o711)
    with ExitStack() as opened:
        for name in ("a", "b"):
            opened.enter_context(OwnHost(folder / name, client, f"{folder.name}-{name}"))
        _wait(lambda: _begun(job) == 2, f"the move of {job.id}")
        if _losses(_ended(job)) != losses:
            sys.exit(f"the losses of {job.id} differ from those of a job that nobody has disturbed")
    step = next(step for stay in job.timeline().stays if (step := stay.resumed_from_step))
    at_s = {point.step: point.at.timestamp() for point in job.metrics()}
    return at_s[step + 1] - at_s[step]


def _submitted(app: allpass.App, **changes: Any) -> allpass.Job:
    job = app.run(template=_TEMPLATE, parameters=_PARAMETERS | changes, soft_deadline="6hr")
    assert isinstance(job, allpass.Job)
    return job


def _await_steps(job: allpass.Job) -> None:
    _wait(lambda: (job.info().step or 0) >= _FIRST_STEPS, f"the first steps of {job.id}")


def _kill_one(job: allpass.Job, rank: int, found: Rounds) -> None:
    """The process of this machine, with no warning."""
    pid = _process_of(job, rank)
    os.kill(pid, signal.SIGKILL)
    died_s = time.time()
    step = job.info().step or 0
    _wait(lambda: _begun(job) == 2, f"the next run of {job.id}")
    _wait(lambda: max(_moments(job)) > died_s + 0.5 and _after(job, died_s) is not None, f"the next step of {job.id}")
    at_s = _after(job, died_s)
    assert at_s is not None
    found.went_on.append(at_s - died_s)
    resumed = [int(line.rsplit(" ", 1)[1]) for line in job.logs() if "process 0 of 2 begins after step" in line]
    found.repeated_steps.append(max(0, step - resumed[-1]))


def _after(job: allpass.Job, died_s: float) -> float | None:
    """When the first step of the run was done that has begun since."""
    running = [event.at.timestamp() for event in job.events() if event.kind == "running"]
    if len(running) < 2:
        return None
    later = [at_s for at_s in _moments(job) if at_s >= running[-1] - 1 and at_s > died_s]
    return min(later, default=None)


def _process_of(job: allpass.Job, rank: int) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = dict(one.split("=", 1) for one in (folder / "environ").read_text().split("\0") if "=" in one)
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        is_its = environ.get("ALLPASS_JOB_ID") == job.id and environ.get("ALLPASS_NODE_RANK") == str(rank)
        if is_its and "python" in command:
            return int(folder.name)
    sys.exit(f"process {rank} of {job.id} is not found")


def _moments(job: allpass.Job) -> list[float]:
    """When its steps were done, last."""
    return sorted(point.at.timestamp() for point in job.metrics())


def _losses(job: allpass.Job) -> dict[int, float]:
    return {point.step: point.values["loss"] for point in job.metrics()}


def _begun(job: allpass.Job) -> int:
    return sum("process 0 of 2 begins after step" in line for line in job.logs())


def _ended(job: allpass.Job) -> allpass.Job:
    if job.wait(timeout=_LIMIT_S, poll_s=0.1).status != "succeeded":
        sys.exit(f"{job.id} failed: {job.info().message}")
    return job


def _wait(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + _LIMIT_S
    while not holds():
        if time.monotonic() > end_s:
            sys.exit(f"waited {_LIMIT_S:.0f} s for {what}")
        time.sleep(0.05)


def result_of(found: Rounds) -> dict[str, Any]:
    detail = {
        "rounds": len(found.went_on),
        "longest_s": round(max(found.went_on), 3),
        "from_submission_to_the_first_step_s": round(statistics.mean(found.began), 3),
        "pause_s": round(statistics.mean(found.paused), 3),
        "pause_of_a_move_s": round(statistics.mean(found.moved), 3),
        "most_steps_repeated": max(found.repeated_steps),
    }
    value = round(statistics.mean(found.went_on), 3)
    return {"name": "gangs", "value": value, "goal": GOAL_S, "unit": "seconds", "detail": detail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--moves", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        found = play(Path(folder), asked.rounds)
        found.moved = play_moves(Path(folder), asked.moves)
        print(json.dumps(result_of(found)))


if __name__ == "__main__":
    main()
