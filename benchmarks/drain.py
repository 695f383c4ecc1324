"""What a job pays for after its process has ended: for its metrics and its log to arrive.

    .venv/bin/python -m benchmarks.drain [--lines 100000 1000000] [--log-mb 1000] [--data-dir /tmp]

Everything is real: the stack of one machine, its serverless nodes, agents and PostgreSQL. One job writes its metric
lines as fast as a loop can, with a checkpoint line in the middle; another one its log. The process's last act is to
tell when it ended; the run's allocation ends with the job's last event. `value` is the longest that a job paid for.
Prints one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import allpass as aps
from allpass.client import Client
from allpass.job import Job
from app.stack.supervisor import Stack, StackOptions

GOAL_S = 2.0
_PATIENCE_S = 1800.0
_ENDED = "ended_s"
_METRICS = """\
import json, math, os, sys, time
lines = int(sys.argv[1])
state = os.path.join(os.environ["ALLPASS_CHECKPOINT_DIR"], "state")
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
    for step in range(1, lines):
        metrics.write(json.dumps({"step": step, "loss": 2.0 + math.sin(step / 1000), "lr": 1e-4}) + "\\n")
        if step == lines // 2:
            open(state, "w").write("state")
            metrics.write(json.dumps({"step": step, "checkpoint": "state"}) + "\\n")
    metrics.write(json.dumps({"step": lines, "ended_s": time.time()}) + "\\n")
"""
_LOG = """\
import json, os, sys, time
block = "".join(f"line {number} of a log that nobody will read to its end\\n" for number in range(20_000))
for _ in range(int(float(sys.argv[1]) * 1e6 / len(block))):
    sys.stdout.write(block)
print("the last line", flush=True)
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
    metrics.write(json.dumps({"step": 1, "ended_s": time.time()}) + "\\n")
"""
_COUNTED = re.compile(
    r'^(?:allpass_http_requests_total\{method="POST",route="/v1/agent/(\w+)",status="(\d+)"\}'
    r"|(allpass_metric_points_total|allpass_log_bytes_total|allpass_log_chunks_total)) (\S+)$",
    re.MULTILINE,
)


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--log-mb", type=float, nargs="*", default=[1_000.0])
    parser.add_argument("--data-dir", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    rounds: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="allpass-bench-", dir=options.data_dir) as folder:
        stack = Stack(StackOptions(Path(folder) / "data", port=0, cloud_speed=0), tell=print)
        try:
            stack.start()
            connection = json.loads(stack.layout.client_file.read_text())
            with Client(connection["url"], connection["api_key"]) as client:
                measure(client, Path(folder), _METRICS, 100)  # warms up
                for lines in options.lines:
                    rounds[f"{lines:,} metric lines"] = measure(client, Path(folder), _METRICS, lines)
                for log_mb in options.log_mb:
                    rounds[f"{log_mb:,.0f} MB of log"] = measure(client, Path(folder), _LOG, log_mb)
        finally:
            stack.stop()
    value = max(one["billed_s"] for one in rounds.values())
    detail = {**rounds, "load_average": [round(load, 2) for load in os.getloadavg()], "cores": os.cpu_count()}
    print(json.dumps({"name": "drain", "value": value, "goal": GOAL_S, "unit": "s", "detail": detail}))
    return 0


def measure(client: Client, folder: Path, code: str, size: float) -> dict[str, Any]:
    """One job: the seconds that it was billed after its process had gone, how long it ran, and what it sent."""
    script = folder / "drain.py"
    script.write_text(code)
    app = aps.build(app_name="drain", user_name="benchmark", code=str(script), client=client)
    before = counted(client)
    job = app.run(app_name=f"size {size:g}", parameters=[str(size)], soft_deadline="2h")
    assert isinstance(job, Job)
    job.wait(timeout=_PATIENCE_S)
    events = {event.kind: event.at.timestamp() for event in client.events(job.id)}
    ended_s = next(one.values[_ENDED] for one in client.metrics(job.id) if _ENDED in one.values)
    sent = {name: number - before.get(name, 0) for name, number in counted(client).items()}
    return {
        "billed_s": round(events["succeeded"] - ended_s, 2),
        "process_s": round(ended_s - events["running"], 2),
        **{name: round(number) for name, number in sorted(sent.items())},
    }


def counted(client: Client) -> dict[str, float]:
    """What the server has taken from agents so far."""
    with urllib.request.urlopen(f"{client.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    numbers: dict[str, float] = {}
    for route, status, name, number in _COUNTED.findall(text):
        told = name.removeprefix("allpass_").removesuffix("_total") if name else f"requests_{route}_{status}"
        numbers[told] = float(number)
    return {name: number for name, number in numbers.items() if not name.startswith("requests_sync")}


if __name__ == "__main__":
    sys.exit(main())
