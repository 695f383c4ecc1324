"""From submit to the first line of user code, on a local serverless node with zero emulated start-up time.

    .venv/bin/python -m benchmarks.start_latency --rounds 20

Everything is real: the SDK over HTTP, the decision, the create call to the local cloud, an agent process that boots
and dials home, the bundle's download, the user's Python. The data directory lies on /dev/shm where that can be
written, so that a slow disk is not what is measured; PostgreSQL runs with its default durability settings. Prints one
JSON object last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import allpass as aps
from allpass.client import Client
from allpass.job import Job
from app.stack.supervisor import Stack, StackOptions

GOAL_S = 0.5
_LAST_PHASE = "user's Python: until its first line"
_SCRIPT = """\
import json, os, time
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
    metrics.write(json.dumps({"step": 1, "user_code_started_s": time.time()}) + "\\n")
"""


def measure(client: Client, script: Path, rounds: int) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds per round, and how long each phase of a round took."""
    app = aps.build(app_name="latency", user_name="benchmark", code=str(script), client=client)
    latencies: list[float] = []
    phases: dict[str, list[float]] = {}
    for number in range(rounds):
        submitted_s = time.time()
        job = app.run(app_name=f"round {number}", soft_deadline="1h")
        assert isinstance(job, Job)
        job.wait(timeout=60)
        started_s = next(iter(client.metrics(job.id))).values["user_code_started_s"]
        latencies.append(started_s - submitted_s)
        previous = submitted_s
        for phase, at_s in [*_moments(client, job.id), (_LAST_PHASE, started_s)]:
            # The last reports race with the user's own process; what came after its first line is no phase of it.
            until_s = max(previous, min(at_s, started_s))
            phases.setdefault(phase, []).append(until_s - previous)
            previous = until_s
    return latencies, phases


def _moments(client: Client, job_id: str) -> list[tuple[str, float]]:
    """Each phase with the instant of its end, in order."""
    events = {event.kind: event for event in client.events(job_id)}
    node_id = events["starting"].data["node_id"]
    node = next(node for node in client.nodes(include_gone=True) if node.id == node_id)
    assert node.ready_at is not None
    ends = {
        "submit: until the job's row is made": events["job_queued"].at,
        "wake-up: until the decision looks at the world": events["starting"].at,
        "decision, create call, machine boots: until its agent calls home": node.ready_at,
        "orders: until the agent tells that it prepares": events["run_starting"].at,
        "preparing: until the agent tells that the process runs": events["run_running"].at,
    }
    return [(phase, at.timestamp()) for phase, at in ends.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    on_tmpfs = os.access("/dev/shm", os.W_OK)
    with tempfile.TemporaryDirectory(prefix="allpass-bench-", dir="/dev/shm" if on_tmpfs else None) as folder:
        script = Path(folder) / "first_line.py"
        script.write_text(_SCRIPT)
        stack = Stack(StackOptions(Path(folder) / "data", port=0, cloud_speed=0), tell=print)
        try:
            stack.start()
            connection = json.loads(stack.layout.client_file.read_text())
            with Client(connection["url"], connection["api_key"]) as client:
                measure(client, script, 2)  # warm up: the first statements of each kind, the first files read
                latencies, phases = measure(client, script, rounds)
        finally:
            stack.stop()
    report = {
        "name": "start_latency",
        "value": round(statistics.median(latencies), 4),
        "goal": GOAL_S,
        "unit": "s",
        "detail": {
            "rounds": rounds,
            "min_s": round(min(latencies), 4),
            "max_s": round(max(latencies), 4),
            "storage": "/dev/shm (tmpfs)" if on_tmpfs else "temporary folder: /dev/shm cannot be written",
            "load_average": [round(load, 2) for load in os.getloadavg()],
            "median_phases_s": {name: round(statistics.median(times), 4) for name, times in phases.items()},
        },
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
