"""The three jobs of the demo, submitted exactly as a user would."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import allpass as aps
from allpass.client import Client
from allpass.job import Job

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SHORT_STEPS = 60
SEED = 7
LONG_STEP_MS = 100  # at least: however fast this machine is, the long job is worth a move
_A100 = {"count": 1, "type": "A100"}


@dataclass(frozen=True, slots=True)
class DemoJobs:
    """Handles, in the order in which they are shown."""

    short: Job
    long: Job
    failing: Job

    def all(self) -> tuple[Job, Job, Job]:
        return (self.short, self.long, self.failing)


def training_parameters(steps: int) -> dict[str, Any]:
    """What the training script is given, in the job and in the uninterrupted reference alike."""
    return {"steps": steps, "seed": SEED, "step_ms": LONG_STEP_MS}


def submit_jobs(client: Client, steps: int) -> DemoJobs:
    """Register two apps with `build()` and submit with `run()`."""
    quick = aps.build(app_name="curve-fit", user_name="demo", code=str(EXAMPLES / "plain_loop.py"), client=client)
    trainer = aps.build(app_name="tiny-llama", user_name="demo", code=str(EXAMPLES / "train.py"), client=client)
    broken = aps.build(app_name="broken", user_name="demo", code=str(EXAMPLES / "fails.py"), client=client)
    short = quick.run(
        app_name="short-fit",
        template={"training": {"steps": SHORT_STEPS}, "gpu": _A100},
        soft_deadline="1h",
        parameters={"steps": SHORT_STEPS, "step_ms": 50},
    )
    long = trainer.run(
        app_name="long-lora", template=_template(steps), soft_deadline="6hr", parameters=training_parameters(steps)
    )
    failing = broken.run(app_name="broken-code", soft_deadline="1h")
    assert isinstance(short, Job)
    assert isinstance(long, Job)
    assert isinstance(failing, Job)
    return DemoJobs(short, long, failing)


def _template(steps: int) -> dict[str, Any]:
    return {
        "model": {"name": "tiny-llama", "parameters": 150_000},
        "dataset": {"name": "docstrings of the Python standard library"},
        "training": {"steps": steps, "method": "lora", "precision": "fp32"},
        "gpu": _A100,
    }
