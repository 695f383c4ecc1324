"""A profile run: the recipe's process tells what the rows ask of the model, and nothing else comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.wire.agent import DesiredRun, ProfileFound, ResumeFrom
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane
from workers.agent.facts import profile_of

Start = Callable[..., AgentProcess]
FOUND = {"fisher": [0.5, 1.5], "pull": [1.0, -0.25, 0.0], "rows": 12, "tokens": 96}
SCRIPT = """
import json, os, pathlib
told = {"profile": %r} if os.environ.get("ALLPASS_PURPOSE") == "profile" else {}
pathlib.Path(os.environ["ALLPASS_OUTPUT_DIR"], "left.txt").write_text("nobody wants it")
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
    file.write(json.dumps({"step": 0, "training": told}) + chr(10))
"""
FIRST = """
import json, os, pathlib, time
control = pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"])
print("looks first:", os.environ.get("ALLPASS_PROFILES"), flush=True)
def say(line):
    with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
        file.write(json.dumps(line) + chr(10))
say({"step": 0, "training": {"profile": %r}})
step = 0
while not (control / "end").exists():
    if (control / "train").exists():
        step += 1
        say({"step": step, "loss": 1.0, "training": {"profile": %r}})
    time.sleep(0.01)
"""

numbers = st.floats() | st.integers() | st.none() | st.booleans() | st.text(max_size=3)
lists = st.lists(numbers, max_size=5) | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5) | numbers
told = st.fixed_dictionaries({}, optional={name: lists | st.integers(-1, 2**70) for name in [*FOUND, "other"]})


def recipe(plane: Plane, found: Any = FOUND, **spec: Any) -> DesiredRun:
    bundle = tar_gz({"train.py": SCRIPT % (found,), "recipe.json": "{}"})
    return desired(plane, bundle, **{"purpose": "profile", **spec})


@settings(max_examples=100, deadline=None)
@given(told | numbers)
def test_whatever_is_told_as_a_profile_is_taken_or_left_out(told: Any) -> None:
    """It must never be the reason that the end of a run is refused."""
    found = profile_of({"profile": told})
    if found:
        ProfileFound.model_validate_json(json.dumps(found))


def test_a_good_profile_passes_as_it_is() -> None:
    """The longest as well; one number more is none."""
    longest = {"fisher": [1.0] * 1024, "pull": [0.5] * 512, "rows": 64, "tokens": 65536}
    assert profile_of({"profile": longest}) == longest
    assert profile_of({"profile": {**longest, "pull": [0.5] * 513}}) == {}
    ProfileFound.model_validate(longest)


def test_a_profile_reaches_the_server_with_the_end_of_its_run(plane: Plane, start_agent: Start) -> None:
    """No output is stored, and no checkpoint."""
    run = recipe(plane)
    plane.want(run)
    start_agent()
    exit_ = plane.wait_exit(run.run_id)
    assert (exit_.exit_code, exit_.profile) == (0, ProfileFound.model_validate(FOUND))
    assert run.run_id not in plane.artifacts
    assert plane.checkpoints == {}


def test_what_is_no_profile_is_not_told(plane: Plane, start_agent: Start) -> None:
    """The server hears of the end alone; a run that trains tells none, whatever its script says."""
    bad = recipe(plane, {**FOUND, "rows": -1})
    trains = recipe(plane, job_id="job_2", purpose="train")
    plane.want(bad)
    plane.want(trains)
    start_agent()
    for run in (bad, trains):
        exit_ = plane.wait_exit(run.run_id)
        assert (exit_.exit_code, exit_.profile) == (0, None)


def test_code_that_is_not_the_recipes_is_not_profiled(plane: Plane, start_agent: Start) -> None:
    """None of it runs."""
    run = desired(plane, "print('ran')", purpose="profile")
    plane.want(run)
    start_agent()
    exit_ = plane.wait_exit(run.run_id)
    assert exit_.environment_error == "only a job of the built-in recipe can be profiled"
    assert "ran" not in plane.log(run.run_id).split()


def test_what_another_learned_is_begun_with_at_step_0(plane: Plane, start_agent: Start) -> None:
    """The script finds the checkpoint's files, and is told that they are another's; the first report says step 0."""
    script = """
import os, pathlib
print(sorted(path.name for path in pathlib.Path(os.environ["ALLPASS_RESUME_DIR"]).iterdir()),
      os.environ["ALLPASS_RESUME_STEP"], os.environ["ALLPASS_RESUME_LEARNED"])
"""
    content = b"weights"
    sha256 = plane.put(content)
    files: Any = [{"path": "model.bin", "sha256": sha256, "size_bytes": len(content)}]
    resume = ResumeFrom(checkpoint_id="ckp_1", step=40, files=files, learned=True)
    run = desired(plane, script, resume=resume)
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    plane.wait_log(run.run_id, "['model.bin'] 0 1")
    assert {report.step for report in plane.reports if report.run_id == run.run_id} == {0}


def looks_first(plane: Plane, control: Path, found: Any = FOUND, **spec: Any) -> DesiredRun:
    """It takes steps once there is a file `train` in `control`, until there is `end`, and finds the same each time."""
    plane.report_every_ms = 50
    bundle = tar_gz({"train.py": FIRST % (found, found), "recipe.json": "{}"})
    run = desired(plane, bundle, parameters={"control": str(control)}, profiles=True, **spec)
    plane.want(run)
    return run


def profiles_of(plane: Plane, run: DesiredRun) -> list[ProfileFound]:
    """As often as it was told, in whatever request."""
    reports = [report for sync in plane.syncs for report in sync.runs if report.run_id == run.run_id]
    return [report.profile for report in reports if report.profile is not None]


@pytest.mark.parametrize("lost", [0, 2])
def test_a_training_run_tells_its_profile_until_it_was_heard(
    plane: Plane, start_agent: Start, open_folder: Path, lost: int
) -> None:
    """At once, before it takes a step, and again where the reply got lost; then no more, also at its end."""
    plane.profile_replies_to_lose = lost
    run = looks_first(plane, open_folder)
    start_agent()
    plane.wait(lambda: len(profiles_of(plane, run)) > lost, "the profile")
    assert plane.told(run.run_id).step == 0
    (open_folder / "train").touch()
    plane.wait(lambda: plane.told(run.run_id).step >= 3 and plane.told(run.run_id).profile is None, "steps alone")
    (open_folder / "end").touch()
    exit_ = plane.wait_exit(run.run_id)
    assert (exit_.exit_code, exit_.profile, plane.told(run.run_id).profile) == (0, None, None)
    assert all(one == ProfileFound.model_validate(FOUND) for one in profiles_of(plane, run))
    plane.wait_log(run.run_id, "looks first: 1")


def test_what_nobody_heard_is_told_with_the_end(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """Of a run that is over before a reply came."""
    (open_folder / "end").touch()
    plane.profile_replies_to_lose = 1_000_000
    run = looks_first(plane, open_folder)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert plane.told(run.run_id).profile == ProfileFound.model_validate(FOUND)
    plane.profile_replies_to_lose = 0


def test_a_run_that_goes_on_from_a_checkpoint_does_not_look_again(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """Whatever it was told, and whatever its script says."""
    content = b"weights"
    files: Any = [{"path": "model.bin", "sha256": plane.put(content), "size_bytes": len(content)}]
    (open_folder / "end").touch()
    run = looks_first(plane, open_folder, resume=ResumeFrom(checkpoint_id="ckp_1", step=40, files=files))
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    plane.wait_log(run.run_id, "looks first: None")
    assert profiles_of(plane, run) == []


def test_what_is_no_profile_harms_no_training(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """It is left out of all reports."""
    (open_folder / "end").touch()
    run = looks_first(plane, open_folder, {**FOUND, "pull": ["much"]})
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert profiles_of(plane, run) == []
