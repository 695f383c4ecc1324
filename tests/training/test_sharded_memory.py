"""What a process holds of a base that is split, by torch's own tracker: the predictor counts that, or more."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.training.scripts import REPOSITORY

pytestmark = pytest.mark.training


def test_two_layers_are_whole_at_the_worst_moment_of_a_step() -> None:
    """The one at work and the next. Of all the others it has its share; nothing is passed on that is learned."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "sdk")))}
    command = [sys.executable, "-m", "tests.training.sharded_memory"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    layer = told["layer"]
    assert told["sharded_param"] == pytest.approx(told["layers"] * layer / told["count"], rel=0.01)
    assert layer <= told["unsharded_param"] + told["all_gather"] <= 2.01 * layer
    assert told["reduce_scatter"] == told["sharded_grad"] == told["unsharded_grad"] == 0
