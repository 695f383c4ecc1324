"""A training loop that uses nothing of Allpass: environment variables, SIGTERM and a folder are the whole contract.

It fits y = w·x + b to noisy points by gradient descent, one random point a step, in pure Python. Interrupted at any
step and resumed elsewhere, it ends with exactly the numbers of a run that was never interrupted.

Parameters (ALLPASS_PARAMETERS_FILE): steps (200), step_ms (20: how long a step takes at least), seed (0).
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

STOPPED = 75  # any code but 0 will do: the checkpoint is what counts


def main():
    stop_requests = []
    signal.signal(signal.SIGTERM, lambda *_: stop_requests.append(True))
    parameters = {"steps": 200, "step_ms": 20, "seed": 0, **read_json(os.environ.get("ALLPASS_PARAMETERS_FILE"))}
    checkpoint_dir = Path(os.environ.get("ALLPASS_CHECKPOINT_DIR", "allpass-checkpoints"))
    output_dir = Path(os.environ.get("ALLPASS_OUTPUT_DIR", "allpass-output"))
    interval_s = float(os.environ.get("ALLPASS_CHECKPOINT_INTERVAL_S", "300"))
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    output_dir.mkdir(parents=True, exist_ok=True)

    chance = random.Random(parameters["seed"])  # noqa: S311 - noise for data, no secret
    state = {"step": 0, "weight": 0.0, "bias": 0.0}
    resume_dir = os.environ.get("ALLPASS_RESUME_DIR")
    if resume_dir:
        state = read_json(Path(resume_dir) / "state.json")
        version, numbers, gauss = state.pop("chance")
        chance.setstate((version, tuple(numbers), gauss))
    print(f"plain_loop: from step {state['step']} to {parameters['steps']}", flush=True)

    saved_at = time.monotonic()
    with Path(os.environ.get("ALLPASS_METRICS_FILE", checkpoint_dir / "metrics.jsonl")).open("a") as metrics:
        append(metrics, {"step": state["step"], "training": {"saves": True}})  # when it is asked to: it may be moved
        while state["step"] < parameters["steps"]:
            step_ends = time.monotonic() + parameters["step_ms"] / 1000
            loss = train_one_step(state, chance)
            time.sleep(max(0.0, step_ends - time.monotonic()))
            append(metrics, {"step": state["step"], "loss": loss})
            if stop_requests or time.monotonic() - saved_at >= interval_s:
                stopping = bool(stop_requests)
                name = save(checkpoint_dir, state, chance)
                append(metrics, {"step": state["step"], "checkpoint": name})
                saved_at = time.monotonic()
                if stopping:
                    print(f"plain_loop: saved step {state['step']}, leaving", flush=True)
                    return STOPPED

    (output_dir / "model.json").write_text(json.dumps(state))
    print(f"plain_loop: done, weight {state['weight']:.4f}, bias {state['bias']:.4f}", flush=True)
    return 0


def train_one_step(state, chance):
    """One step of stochastic gradient descent towards y = 3x - 2; returns the loss before it."""
    x = chance.uniform(-1.0, 1.0)
    error = state["weight"] * x + state["bias"] - (3.0 * x - 2.0 + chance.gauss(0.0, 0.05))
    state["weight"] -= 0.1 * error * x
    state["bias"] -= 0.1 * error
    state["step"] += 1
    return error * error


def save(checkpoint_dir, state, chance):
    """Write a complete checkpoint folder and return its name: hidden first, renamed when it is whole."""
    hidden, final = checkpoint_dir / ".saving", checkpoint_dir / f"step-{state['step']:08d}"
    hidden.mkdir(exist_ok=True)
    with (hidden / "state.json").open("w") as file:
        json.dump({**state, "chance": chance.getstate()}, file)
        file.flush()
        os.fsync(file.fileno())
    if final.exists():  # left by an earlier experiment in the same folder
        (final / "state.json").unlink()
        final.rmdir()
    hidden.rename(final)
    return final.name


def append(file, line):
    file.write(json.dumps(line) + "\n")
    file.flush()


def read_json(path):
    return json.loads(Path(path).read_text()) if path else {}


if __name__ == "__main__":
    sys.exit(main())
