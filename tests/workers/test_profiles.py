"""A profile run: the recipe's process tells what the rows ask of the model, and nothing else comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

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
    assert "['model.bin'] 0 1" in plane.log(run.run_id)
    assert {report.step for report in plane.reports if report.run_id == run.run_id} == {0}
