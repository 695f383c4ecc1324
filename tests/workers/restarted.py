"""Code that is restarted for its GPUs, and what is asked of it and heard."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allpass.wire.agent import DesiredRun, GpusTold
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane

Start = Callable[..., AgentProcess]
UNAWARE = Path(__file__).parents[1] / "training" / "unaware"
ACCELERATED, TRAINER = UNAWARE / "accelerated.py", UNAWARE / "trainer.py"
BY_RESTART = {"resize_by": "restart", "gpu": {"count": 2}}


# A loop as people write it: it saves and leaves on SIGTERM. What is in `control` makes it go wrong.
TRAINS = r"""
import hashlib, json, os, pathlib, signal, sys, time
control = pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
gpus = os.environ["CUDA_VISIBLE_DEVICES"]
counts = [os.environ.get(name) for name in ("PET_NPROC_PER_NODE", "ALLPASS_GPU_COUNT", "ALLPASS_GPU_COUNT_ASKED")]
step, state = 0, "start"
if "ALLPASS_RESUME_DIR" in os.environ:
    step, state = json.loads(pathlib.Path(os.environ["ALLPASS_RESUME_DIR"], "state.json").read_text())
    assert step == int(os.environ["ALLPASS_RESUME_STEP"])
(control / "pid").write_text(str(os.getpid()))
print(f"begins on {gpus} at {step}", *counts, flush=True)
metrics = open(os.environ["ALLPASS_METRICS_FILE"], "a", buffering=1)
if (control / f"fails-on-{len(gpus.split(','))}").exists():
    if (control / "unusable").exists():
        metrics.write(json.dumps({"step": step, "training": {"unusable": "CUDA error: device busy"}}) + "\n")
    sys.exit("cannot begin with so many")
while not (control / "end").exists():
    step += 1
    state = hashlib.sha256(f"{state}{step}".encode()).hexdigest()
    time.sleep(0.02)
    metrics.write(json.dumps({"step": step, "loss": 1 / step, "training": {"saves": True} if SAVES else {}}) + "\n")
    if (control / "fails").exists():
        sys.exit(3)
    if asked and (control / "done").exists():
        sys.exit(0)
    if asked and (control / "slow").exists():
        continue
    if asked and (control / "breaks").exists():
        sys.exit(3)
    if asked or (EVERY and step % EVERY == 0):
        folder = pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"], f"step-{step}")
        folder.mkdir()
        (folder / "state.json").write_text(json.dumps([step, state]))
        metrics.write(json.dumps({"step": step, "checkpoint": folder.name}) + "\n")
    if asked:
        print(f"leaves {gpus} at {step}", flush=True)
        sys.exit(75)
print("result", step, state, flush=True)
"""


def a_run(
    plane: Plane, control: Path, *, saves: bool = True, every: int = 0, script: str = TRAINS, **spec: Any
) -> DesiredRun:
    plane.report_every_ms = 50
    control.chmod(0o777)
    script = f"SAVES, EVERY = {saves}, {every}\n{script}"
    values = {"template": BY_RESTART, "gpu_indices": [0, 1], "use_gpus": [0, 1], **spec}
    return desired(plane, script, parameters={"control": str(control)}, **values)


def give(plane: Plane, run: DesiredRun, *gpus: int, held: tuple[int, ...] = (0, 1)) -> None:
    spec = run.spec.model_copy(update={"use_gpus": list(gpus), "gpu_indices": list(held)})
    plane.want(run.model_copy(update={"spec": spec}))


def gpus_told(plane: Plane, run: DesiredRun) -> GpusTold:
    report = plane.report(run.run_id)
    return (None if report is None else report.gpus) or GpusTold(used=[], leaving=[], refused=[])


def uses(plane: Plane, run: DesiredRun) -> tuple[list[int], list[int]]:
    told = gpus_told(plane, run)
    return told.used, told.leaving


def has(plane: Plane, run: DesiredRun, gpus: list[int]) -> bool:
    return uses(plane, run) == (gpus, [])


def begins(plane: Plane, run: DesiredRun) -> list[tuple[str, int]]:
    found = re.findall(r"^begins on ([\d,]+) at (\d+)", plane.log(run.run_id), re.MULTILINE)
    return [(gpus, int(step)) for gpus, step in found]


def end(plane: Plane, run: DesiredRun, control: Path) -> None:
    (control / "end").touch()
    assert plane.wait_exit(run.run_id).exit_code == 0


OWN = r"""
import json, os, pathlib, time
control = pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"])
out = pathlib.Path("out")
found = sorted(out.glob("checkpoint-*"), key=lambda one: int(one.name.split("-")[1]))
step = json.loads((found[-1] / "state.json").read_text()) if found else 0
print(f"begins on {os.environ['CUDA_VISIBLE_DEVICES']} at {step}", flush=True)
while not (control / "end").exists():
    step += 1
    time.sleep(0.02)
    if step % 20 == 0 and not (control / "saves-no-more").exists():
        folder = out / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps(step))
    elif (control / "saves-no-more").exists():
        (control / "is-on").touch()
"""


def is_asked_for_one(plane: Plane, run: DesiredRun, open_folder: Path) -> None:
    """To give up one of its two GPUs; it is slow to save, and has not left yet."""
    (open_folder / "slow").touch()
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run) == ([0, 1], [1]), "about to leave one")
