"""Which GPUs a run is to use: put where its training looks, whatever its code does there; and what that says of them
reaches the server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.wire.agent import DesiredRun, GpusTold
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane
from tests.workers.test_isolation import SYSTEM_PYTHON
from workers.agent.config import load
from workers.agent.facts import gpus_of
from workers.agent.gpus import host_index, machine_index
from workers.agent.training import MOST_GPU_NEWS

Start = Callable[..., AgentProcess]
FOLLOWS = """
import json, os, pathlib, time
file = pathlib.Path(os.environ.get("ALLPASS_GPUS_FILE", "none"))
control = pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"])
print("first", file.read_text() if file.exists() else "nothing", flush=True)
step, seen = 0, None
while not (control / "end").exists():
    if (control / "replace").exists() and not file.parent.is_symlink():
        file.parent.rename(file.parent.with_name("elsewhere"))
        os.symlink(control / "trap", file.parent)
    told = {}
    now = json.loads(file.read_text()) if file.exists() else None
    if now != seen:
        told = {"gpus": {"used": now or [], "leaving": [], "refused": ["x"]}}
    seen = now
    step += 1
    with open(os.environ["ALLPASS_METRICS_FILE"], "a") as out:
        out.write(json.dumps({"step": step, "loss": 1.0, "training": told}) + chr(10))
    time.sleep(0.01)
"""

anything = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5)
lists = st.lists(st.text(max_size=3), max_size=70) | anything


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries({}, optional={"used": lists, "leaving": lists, "refused": lists, "pause_ms": anything})
    | anything
)
def test_whatever_is_told_is_taken_or_left_out(told: Any) -> None:
    found = gpus_of({"gpus": told})
    pause_ms = found.pop("pause_ms", 0)
    assert type(pause_ms) is int and 0 <= pause_ms <= 86_400_000
    assert not found or set(found) == {"used", "leaving", "refused"}
    assert all(len(one) <= 64 for one in found.values())


@pytest.mark.parametrize("own", [None, [4, 2, 7]])
def test_names_are_numbers_of_the_host(own: list[int] | None) -> None:
    """A machine that shares its host counts its own from 0 on; the name of no GPU of it is none."""
    config = load({"ALLPASS_URL": "http://127.0.0.1:1", "ALLPASS_AGENT_ROOT": "/nowhere"})._replace(own_gpus=own)
    for index in range(3):
        assert machine_index(config, str(host_index(config, index))) == index
    wrong = ["", "x", "-1", "1.0", "٣", "9" * 30, "MIG-1"] + ([] if own is None else ["0", "1", "3"])
    assert [machine_index(config, one) for one in wrong] == [None] * len(wrong)


def a_run(plane: Plane, control: Path, *, recipe: bool = True, **spec: Any) -> DesiredRun:
    plane.report_every_ms = 50
    control.chmod(0o777)
    files = {"train.py": FOLLOWS, **({"recipe.json": "{}"} if recipe else {})}
    return desired(plane, tar_gz(files), parameters={"control": str(control)}, **spec)


def give(plane: Plane, run: DesiredRun, *gpus: int) -> None:
    plane.want(run.model_copy(update={"spec": run.spec.model_copy(update={"use_gpus": list(gpus)})}))


def uses(plane: Plane, run: DesiredRun) -> list[int] | None:
    report = plane.report(run.run_id)
    return None if report is None or report.gpus is None else report.gpus.used


@pytest.mark.parametrize("recipe", [True, False])
def test_it_is_told_before_it_begins_and_whenever_they_change(
    plane: Plane, start_agent: Start, open_folder: Path, recipe: bool
) -> None:
    """Also a training that runs as a user of its own; of the built-in recipe, and any other."""
    has_users = os.getuid() == 0 and Path(SYSTEM_PYTHON).exists()
    run = a_run(plane, open_folder, recipe=recipe, gpu_indices=[0, 1, 2], use_gpus=[0, 1])
    plane.want(run)
    start_agent(open_folder / "machine", **({"ALLPASS_AGENT_PYTHON": SYSTEM_PYTHON} if has_users else {}))
    plane.wait(lambda: uses(plane, run) == [0, 1], "those that it begins with")
    give(plane, run, 0, 1, 2)
    plane.wait(lambda: uses(plane, run) == [0, 1, 2], "one more")
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run) == [0], "one alone")
    give(plane, run)  # of a server that says nothing of it
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 20)
    assert plane.told(run.run_id).gpus == GpusTold(used=[0], leaving=[], refused=[])
    (open_folder / "end").touch()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert 'first ["0", "1"]' in plane.log(run.run_id)


def test_a_link_in_its_place_is_not_followed(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """Code that has put one there loses nothing but the news."""
    (open_folder / "trap").mkdir()
    run = a_run(plane, open_folder, gpu_indices=[0, 1], use_gpus=[0])
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == [0], "those that it begins with")
    (open_folder / "replace").touch()
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 10)
    give(plane, run, 0, 1)
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 30)
    (open_folder / "end").touch()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert list((open_folder / "trap").iterdir()) == []


def test_by_a_server_of_an_older_release_it_is_told_nothing(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    run = a_run(plane, open_folder, gpu_indices=[0])
    plane.want(run)
    start_agent()
    plane.wait_step(run.run_id, 3)
    (open_folder / "end").touch()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert "first nothing" in plane.log(run.run_id)
    assert plane.told(run.run_id).gpus is None


FLICKERS = """
import json, os, pathlib, time
control = pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"])
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as out:
    for step in range(1, 5001):
        gpus = {"used": [str(step % 2)], "leaving": [], "refused": []}
        out.write(json.dumps({"step": step, "loss": 1.0, "training": {"gpus": gpus}}) + chr(10))
while not (control / "end").exists():
    time.sleep(0.01)
"""


def test_code_that_never_makes_up_its_mind_is_heard_so_often(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """And its steps and its end as ever."""
    open_folder.chmod(0o777)
    files = {"train.py": FLICKERS, "recipe.json": "{}"}
    run = desired(plane, tar_gz(files), parameters={"control": str(open_folder)}, gpu_indices=[0, 1], use_gpus=[0])
    plane.want(run)
    start_agent()
    plane.wait_step(run.run_id, 5000)
    assert uses(plane, run) == [MOST_GPU_NEWS % 2]
    (open_folder / "end").touch()
    assert plane.wait_exit(run.run_id).exit_code == 0
