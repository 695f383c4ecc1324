"""From submit to the first line of user code, on a local serverless node with zero emulated start-up time.

    .venv/bin/python -m benchmarks.start_latency --rounds 20

Everything is real: the SDK over HTTP, the decision, the create call to the local cloud, an agent process that boots
and dials home, the bundle's download, the user's Python. Prints one JSON object last.
"""

from __future__ import annotations

import argparse
import json
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
_SCRIPT = """\
import json, os, time
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
    metrics.write(json.dumps({"step": 1, "user_code_started_s": time.time()}) + "\\n")
"""


def measure(client: Client, script: Path, rounds: int) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds per round, and the phases between the job's events."""
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
        for event in client.events(job.id):
            if event.at.timestamp() > started_s:
                break
            phases.setdefault(f"until {event.kind}", []).append(event.at.timestamp() - previous)
            previous = event.at.timestamp()
        phases.setdefault("until user code", []).append(started_s - previous)
    return latencies, phases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="allpass-bench-") as folder:
        script = Path(folder) / "first_line.py"
        script.write_text(_SCRIPT)
        stack = Stack(StackOptions(Path(folder) / "data", port=0, cloud_speed=0), tell=print)
        try:
            stack.start()
            connection = json.loads(stack.layout.client_file.read_text())
            with Client(connection["url"], connection["api_key"]) as client:
                measure(client, script, 1)  # warm up: the first agent compiles its bytecode
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
            "median_phases_s": {name: round(statistics.median(times), 4) for name, times in phases.items()},
        },
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
