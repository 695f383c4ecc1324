"""What a process holds of a base that is split, by torch's own tracker: the predictor counts that, or more."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.training.scripts import REPOSITORY

pytestmark = pytest.mark.training


def told_by(name: str) -> dict[str, int]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "sdk")))}
    command = [sys.executable, "-m", f"tests.training.{name}"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_two_layers_are_whole_at_the_worst_moment_of_a_step() -> None:
    """The one at work and the next. Of all the others it has its share; nothing is passed on that is learned."""
    told = told_by("sharded_memory")
    layer = told["layer"]
    assert told["sharded_param"] == pytest.approx(told["layers"] * layer / told["count"], rel=0.01)
    assert layer <= told["unsharded_param"] + told["all_gather"] <= 2.01 * layer
    assert told["reduce_scatter"] == told["sharded_grad"] == told["unsharded_grad"] == 0


def test_of_a_full_fine_tuning_a_process_has_its_share_of_all_that_stays() -> None:
    """Weights and both states; gradients as far as the way back has come. What is put together or passed on at the
    worst moment of a step is as much as is predicted, or less: a few layers, and what belongs to none."""
    told = told_by("split_memory")
    layer, share = told["layer"], told["all"] / told["count"]
    assert told["sharded_param"] == pytest.approx(share, rel=0.01)
    assert told["opt"] == pytest.approx(2 * share, rel=0.01)
    assert told["sharded_grad"] <= share * 1.01
    passing = told["unsharded_param"] + told["all_gather"] + told["unsharded_grad"] + told["temp"]
    outer = told["all"] - told["layers"] * layer
    assert outer + 3 * layer <= passing + told["reduce_scatter"] <= 2 * outer + 6 * layer
