"""The contract by hand: parameters, metrics, a checkpoint when asked, results. Nothing of Allpass is imported."""

import json
import os
import signal
import sys
import time
from pathlib import Path

stop_requests = []
signal.signal(signal.SIGTERM, lambda *_: stop_requests.append(True))
parameters = json.loads(Path(os.environ["ALLPASS_PARAMETERS_FILE"]).read_text())
interval_s = float(os.environ["ALLPASS_CHECKPOINT_INTERVAL_S"])

step, weight = 0, 0.0
if "ALLPASS_RESUME_DIR" in os.environ:
    step, weight = json.loads(Path(os.environ["ALLPASS_RESUME_DIR"], "state.json").read_text())
print(f"from step {step}", flush=True)

saved_at = time.monotonic()
with Path(os.environ["ALLPASS_METRICS_FILE"]).open("a", buffering=1) as metrics:
    metrics.write(json.dumps({"step": step, "training": {"saves": True}}) + "\n")  # when asked: so it may be moved
    while step < parameters.get("steps", 100):
        weight += parameters.get("lr", 0.1) * (3.0 - weight)  # one step of training
        step += 1
        time.sleep(0.02)
        metrics.write(json.dumps({"step": step, "loss": (3.0 - weight) ** 2}) + "\n")
        stopping = bool(stop_requests)
        if stopping or time.monotonic() - saved_at >= interval_s:
            folder = Path(os.environ["ALLPASS_CHECKPOINT_DIR"], f"step-{step}")
            folder.mkdir(exist_ok=True)
            (folder / "state.json").write_text(json.dumps([step, weight]))
            metrics.write(json.dumps({"step": step, "checkpoint": folder.name}) + "\n")  # from here on it counts
            saved_at = time.monotonic()
        if stopping:
            sys.exit(75)  # any code but 0: there is more to do

Path(os.environ["ALLPASS_OUTPUT_DIR"], "model.json").write_text(json.dumps({"weight": weight}))
print("done", flush=True)
