"""The job of `allpass smoke`: looks at its machine, trains a little, saves when it is asked to, and goes on elsewhere.

Where it begins anew it goes on until it is asked to leave; where it goes on from a checkpoint it ends after some steps.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from allpass import training


def facts() -> dict[str, object]:
    """What is asked about machines of this company, as this one answers."""
    kernel = Path("/proc/version")
    said = kernel.read_text() if kernel.exists() else ""
    return {
        "python": platform.python_version(),
        "pip": find_spec("pip") is not None,
        "ensurepip": find_spec("ensurepip") is not None,
        "torch": find_spec("torch") is not None,
        "uid": os.getuid(),
        "other_user": os.getuid() != 0,
        "gvisor": "gvisor" in said.lower() or Path("/dev/runsc").exists(),
        "kernel": platform.release()[:60],
        "gpu": gpu(),
        "free_gb": round(shutil.disk_usage(".").free / 1e9),
    }


def gpu() -> str | None:
    """As nvidia-smi says; None where there is none."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


class OneWeight:
    """One weight: on the GPU where torch has one, else in plain Python. Both compute the same thing."""

    def __init__(self, weight: float) -> None:
        self.weight, self.device = weight, "python"
        if find_spec("torch") is not None:
            import torch

            self.torch = torch
            self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def step(self) -> float:
        """The loss before the step."""
        if self.device == "python":
            error = self.weight - 3.0
            self.weight -= 0.1 * 2 * error
            return error * error
        weight = self.torch.tensor(self.weight, device=self.device, dtype=self.torch.float64, requires_grad=True)
        loss = (weight - 3.0) ** 2
        (gradient,) = self.torch.autograd.grad(loss, weight)
        self.weight = float((weight - 0.1 * gradient).item())
        return float(loss.item())


def main() -> None:
    steps = training.parameters(steps_after=10, most_steps=100_000, step_s=0.2)
    resume = training.resume()
    step, weight = json.loads((resume.path / "state.json").read_text()) if resume else (0, 0.0)
    model = OneWeight(weight)
    print("rehearsal " + json.dumps({**facts(), "device": model.device, "from_step": step}), flush=True)
    end = step + steps["steps_after"] if resume else steps["most_steps"]
    while step < end:
        loss = model.step()
        step += 1
        time.sleep(steps["step_s"])
        training.report(step, loss=loss)
        if training.should_checkpoint(step):
            training.save(step, write=keeper(step, model.weight))
        training.exit_if_stopping(step)
    print(f"rehearsed {step} steps", flush=True)


def keeper(step: int, weight: float) -> Callable[[Path], None]:
    """Writes the state into the folder that it is given."""

    def keep(folder: Path) -> None:
        (folder / "state.json").write_text(json.dumps([step, weight]))

    return keep


if __name__ == "__main__":
    main()
