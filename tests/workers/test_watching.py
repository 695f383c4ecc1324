"""The rows of a job that waits to begin with a run's weights: put where the trainer looks, and what it says of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.wire.agent import DesiredRun, Watch, Watched
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane
from tests.workers.test_isolation import SYSTEM_PYTHON
from workers.agent.facts import watched_of

Start = Callable[..., AgentProcess]
TELLS = """
import json, os, pathlib, sys, time
folder = pathlib.Path(os.environ["ALLPASS_WATCH_DIR"])
control = pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"])
step, seen = 0, None
while not (control / "end").exists():
    there = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    told = {}
    if there and there != seen:
        order = json.loads((folder / there[0] / "watch.json").read_text())
        rows = (folder / there[0] / "held_out.jsonl").read_text()
        print(order["job_id"], order["parameters"], rows, flush=True)
        told = {"watch": {"job_id": order["job_id"], "epochs": 1.5, "fruitless_epochs": 0.5}}
    if not there and seen:
        print("nobody waits", flush=True)
    seen = there
    step += 1
    with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
        file.write(json.dumps({"step": step, "loss": 1.0, "training": told}) + chr(10))
    time.sleep(0.01)
"""

numbers = st.floats() | st.integers() | st.none() | st.text(max_size=3)
parts = {"job_id": st.text(max_size=70) | st.none(), "epochs": numbers, "fruitless_epochs": numbers, "other": numbers}


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries({}, optional=parts) | numbers)
def test_whatever_is_told_is_taken_or_left_out(told: Any) -> None:
    """It must never be the reason that a report is refused."""
    found = watched_of({"watch": told})
    if found:
        Watched.model_validate_json(json.dumps(found))


def waits(plane: Plane, job_id: str, rows: str) -> Watch:
    bundle = tar_gz({"finetune.py": "", "recipe.json": "{}", "held_out.jsonl": rows})
    return Watch(
        job_id=job_id, bundle_sha256=plane.put(bundle), bundle_size_bytes=len(bundle), parameters={"model": "m"}
    )


def lead(plane: Plane, control: Path, **spec: Any) -> DesiredRun:
    plane.report_every_ms = 50
    control.chmod(0o777)
    bundle = tar_gz({"train.py": TELLS, "recipe.json": "{}"})
    return desired(plane, bundle, parameters={"control": str(control)}, **spec)


def look_at(plane: Plane, run: DesiredRun, watch: Watch | None) -> None:
    plane.want(run.model_copy(update={"spec": run.spec.model_copy(update={"watch": watch})}))


def seen(plane: Plane, run: DesiredRun) -> str | None:
    report = plane.report(run.run_id)
    return None if report is None or report.watch is None else report.watch.job_id


def test_who_waits_is_looked_at_while_the_run_trains(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """It may be known at the start, give way to another, and go away; what is said of it reaches the server."""
    has_users = os.getuid() == 0 and Path(SYSTEM_PYTHON).exists()
    run = lead(plane, open_folder, watch=waits(plane, "job_b", "first rows"))
    plane.want(run)
    start_agent(open_folder / "machine", **({"ALLPASS_AGENT_PYTHON": SYSTEM_PYTHON} if has_users else {}))
    plane.wait(lambda: seen(plane, run) == "job_b", "what is seen of job_b")
    assert plane.told(run.run_id).watch == Watched(job_id="job_b", epochs=1.5, fruitless_epochs=0.5)
    look_at(plane, run, waits(plane, "job_c", "other rows"))
    plane.wait(lambda: seen(plane, run) == "job_c", "what is seen of job_c")
    look_at(plane, run, None)
    plane.wait(lambda: "nobody waits" in plane.log(run.run_id).partition("job_c ")[2], "its going away")
    (open_folder / "end").touch()
    assert plane.wait_exit(run.run_id).exit_code == 0
    lines = [line for line in plane.log(run.run_id).splitlines() if not line.startswith("allpass: ")]
    assert [line for line in lines if line != "nobody waits"] == [
        "job_b {'model': 'm'} first rows",
        "job_c {'model': 'm'} other rows",
    ]


def test_rows_that_cannot_be_fetched_are_not_looked_at(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """The run trains on as if nobody waited."""
    watch = waits(plane, "job_b", "rows")
    plane.objects[watch.bundle_sha256] = b"something else"
    run = lead(plane, open_folder, watch=watch)
    plane.want(run)
    start_agent()
    plane.wait_step(run.run_id, 5)
    (open_folder / "end").touch()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert plane.told(run.run_id).watch is None
