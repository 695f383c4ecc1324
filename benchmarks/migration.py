"""G13: the pause of a planned move, as the user's training sees it, against a save and a load in one process.

    .venv/bin/python -m benchmarks.migration [--state-mb 200] [--rounds 3]

A whole stack on this host: PostgreSQL, object store, local cloud, API and control loop, agents as machines. A job with
a state of so many megabytes, all of which changes with every step, moves from serverless to a rented node: made before
the old place is broken, and stop-and-go. The pause is from the end of the last step on the source to the end of the
first step on the target, by the job's own clock; the phases are told for both. `value` is the median pause of a move
made before the old place was broken, divided by the median time that one process takes to save (with fsync) and load
the same state on the same disk. The demo's training is moved too. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import allpass as aps
from allpass.client import Client
from allpass.job import Job
from app.stack.supervisor import Stack, StackOptions

GOAL = 3.0
DEMO_GOAL_S = 1.0
MODES = ("make_before_break", "stop_and_go")
JOB = Path(__file__).with_name("migration_job.py")
DEMO = Path(__file__).resolve().parents[1] / "examples" / "train.py"
DEMO_STEPS = 400
MB = 1_000_000
# Jobs of seconds move like jobs of hours: as soon as they have run for a moment.
_RULES = {"least_run_ms": 4_000, "move_pause_share": 0.5, "patience_ms": 0, "ahead_gain": 1e9}
_SETTINGS = {
    "ALLPASS_POLICY": "allpass",
    "ALLPASS_POLICY_RULES": json.dumps(_RULES),
    "ALLPASS_MOVE_SAVE_S": "0.1",
    "ALLPASS_MOVE_LOAD_S": "0.1",
    "ALLPASS_MOVE_PREPARE_S": "0.5",
    "ALLPASS_TICK_S": "1",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state-mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    size = options.state_mb * MB
    with tempfile.TemporaryDirectory(prefix="allpass-bench-") as folder:
        Path(folder).chmod(0o711)  # machines run user code as other users, who pass through
        local = local_s(Path(folder), size, options.rounds)
        moves = {mode: measure(Path(folder) / mode, mode, size, options.rounds) for mode in MODES}
    show(moves, size, local)
    pause_s = statistics.median(one["pause_s"] for one in moves["make_before_break"]["state"])
    print(json.dumps(report(moves, local, pause_s, options)))
    return 0


def report(moves: dict[str, Any], local: float, pause_s: float, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "name": "migration",
        "value": round(pause_s / local, 2),
        "goal": GOAL,
        "unit": "x a local save and load",
        "detail": {
            "state_mb": options.state_mb,
            "rounds": options.rounds,
            "local_save_and_load_s": round(local, 3),
            "pause_s": {mode: _rounded(one["pause_s"] for one in moves[mode]["state"]) for mode in MODES},
            "of_transfer_until_commit_s": {
                mode: _rounded(one["sent_s"] for one in moves[mode]["state"]) for mode in MODES
            },
            "demo_pause_s": {mode: moves[mode]["demo_pause_s"] for mode in MODES},
            "demo_goal_s": DEMO_GOAL_S,
            "phases_s": {mode: _medians([one["phases"] for one in moves[mode]["state"]]) for mode in MODES},
            "load_average": [round(load, 2) for load in os.getloadavg()],
        },
    }


def local_s(folder: Path, size: int, rounds: int) -> float:
    """Seconds of a save and a load: the median of some rounds."""
    command = [sys.executable, str(JOB), str(folder / "local"), str(size), str(rounds)]
    (folder / "local").mkdir()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return statistics.median(sum(one) for one in json.loads(done.stdout))


def measure(folder: Path, mode: str, size: int, rounds: int) -> dict[str, Any]:
    """One stack: moves of the large state, then the demo's."""
    with running(folder, mode) as client:
        given = {"state_bytes": size, "step_s": 0.02, "steps_after": 20}
        state = aps.build(app_name="state", user_name="benchmark", code=str(JOB), client=client)
        moved = [
            _state_move(client, state.run(parameters=given, template={"checkpoint_interval_s": 3}))
            for _ in range(rounds)
        ]
        demo = aps.build(app_name="demo", user_name="benchmark", code=str(DEMO), client=client)
        job = demo.run(parameters={"steps": DEMO_STEPS, "seed": 7}, template={"training": {"steps": DEMO_STEPS}})
        return {"state": moved, "demo_pause_s": _demo_pause_s(client, job)}


@contextmanager
def running(folder: Path, mode: str) -> Iterator[Client]:
    settings = {**_SETTINGS, "ALLPASS_MOVES": mode}
    stack = Stack(StackOptions(folder, port=0, cloud_speed=0.05, settings=settings), tell=lambda _: None)
    try:
        stack.start()
        connection = json.loads(stack.layout.client_file.read_text())
        with Client(connection["url"], connection["api_key"]) as client:
            yield client
    finally:
        stack.stop()


def _state_move(client: Client, job: Any) -> dict[str, Any]:
    """Pause and phases of the one move of a job."""
    assert isinstance(job, Job)
    info = job.wait(timeout=300)
    assert (info.status, info.moves) == ("succeeded", 1), info
    _, target = client.timeline(job.id).stays
    points = {point.step: point.values for point in client.metrics(job.id)}
    step = target.resumed_from_step or 0
    last, first = points[step], points[step + 1]
    node = next(node for node in client.nodes(include_gone=True) if node.id == target.node_id)
    at = _moments(client, job.id)
    assert node.ready_at is not None
    ready_s = node.ready_at.timestamp()
    begun_s = at("move_begun") or at("run_stopping")
    cuts = {
        "boot": (node.requested_at.timestamp(), ready_s),
        "decide": (ready_s, begun_s),
        "prefetch": (begun_s, at("run_stopping")),
        "final save": (at("run_stopping"), last["save_end_s"]),
        "transfer": (last["save_end_s"], first["began_s"]),
        "load": (first["began_s"], first["loaded_s"]),
        "first step": (first["loaded_s"], first["at_s"]),
    }
    phases = {name: max(0.0, to_s - from_s) for name, (from_s, to_s) in cuts.items()}
    committed_s = _moments(client, job.id, newest=True)("checkpoint_committed")
    sent_s = max(0.0, committed_s - last["save_end_s"])
    return {"pause_s": first["at_s"] - last["at_s"], "phases": phases, "sent_s": sent_s}


def _moments(client: Client, job_id: str, *, newest: bool = False) -> Callable[[str], float]:
    """When the job's first (or newest) event of a kind was; 0 for one that never was."""
    found: dict[str, float] = {}
    for event in client.events(job_id):
        if newest or event.kind not in found:
            found[event.kind] = event.at.timestamp()
    return lambda kind: found.get(kind, 0.0)


def _demo_pause_s(client: Client, job: Any) -> float:
    """From the last step on the source to the first on the target, by the times of the measured steps."""
    assert isinstance(job, Job)
    info = job.wait(timeout=300)
    assert (info.status, info.moves) == ("succeeded", 1), info
    step = client.timeline(job.id).stays[1].resumed_from_step or 0
    at = {point.step: point.at for point in client.metrics(job.id)}
    before = max(one for one in at if one <= step)
    after = min(one for one in at if one > step)
    return round((at[after] - at[before]).total_seconds(), 3)


def show(moves: dict[str, Any], size: int, local: float) -> None:
    print(f"A state of {size / MB:.0f} MB; saved (fsync) and loaded by one process in {local:.3f} s. Medians, in s:")
    print(f"{'phase':<14}{'make before break':>20}{'stop and go':>14}")
    tables = [_medians([one["phases"] for one in moves[mode]["state"]]) for mode in MODES]
    for name in tables[0]:
        print(f"{name:<14}{tables[0][name]:>20.3f}{tables[1][name]:>14.3f}")
    pauses = [statistics.median(one["pause_s"] for one in moves[mode]["state"]) for mode in MODES]
    print(f"{'pause':<14}{pauses[0]:>20.3f}{pauses[1]:>14.3f}")
    demos = [moves[mode]["demo_pause_s"] for mode in MODES]
    print(f"{'demo: pause':<14}{demos[0]:>20.3f}{demos[1]:>14.3f}")


def _medians(several: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in several), 3) for name in several[0]}


def _rounded(values: Iterator[float]) -> list[float]:
    return [round(value, 3) for value in values]


if __name__ == "__main__":
    sys.exit(main())
