"""Interrupted anywhere, any number of times, a training ends as if nothing had been."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.training.scripts import Host, Machine, Process, files_of, wait_for_step

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]
EVERY_STOP = "../tests/training/every_stop.py"


@pytest.mark.parametrize(("kind", "last_stop"), [("plain", 30), ("trainer", 29)])
def test_a_run_of_thirty_steps_is_exact_wherever_it_is_stopped(
    tmp_path: Path, hosts: tuple[Host, Host], kind: str, last_stop: int
) -> None:
    """Stopped at a step, at three, at every step, or saving beside itself: losses, weights and optimizer are those of
    the run that was left alone, bit for bit."""
    machine = Machine(tmp_path / "run", {"kind": kind})
    process = hosts[0].start(EVERY_STOP, machine)
    assert process.exit_code() == 0, process.output
    same = json.loads(process.output.splitlines()[-1])
    steps = [str(step) for step in range(1, last_stop + 1)]
    assert ",".join(steps) in same
    assert sum(name.count(",") == 2 for name in same) == 3
    if kind == "plain":
        assert set(steps) <= same.keys()
    assert any(name.startswith("from the saved") for name in same)
    assert [name for name, is_same in same.items() if not is_same] == []


def weights(machine: Machine) -> dict[str, Any]:
    import torch

    loaded: dict[str, Any] = torch.load(machine.folder / "output" / "model.pt", weights_only=True)
    return loaded


def test_the_plain_example_moves_between_two_micro_batches(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """Asked by SIGTERM, it leaves at once with code 75, and goes on elsewhere with the very same losses."""
    parameters = {"steps": 60, "hidden": 8}
    whole = Machine(tmp_path / "whole", parameters)
    uninterrupted = hosts[1].start("movable.py", whole)
    here = Machine(tmp_path / "here", {**parameters, "step_ms": 200})  # long before its end when it is asked
    process = hosts[0].start("movable.py", here)
    wait_for_step(here, 6)
    process.stop()
    assert process.exit_code() == 75, process.output
    assert uninterrupted.exit_code() == 0, uninterrupted.output
    there = Machine(tmp_path / "there", parameters, resume_from=here.announced()[-1])
    again = hosts[1].start("movable.py", there)
    assert again.exit_code() == 0, again.output
    assert here.losses() | there.losses() == whole.losses()
    assert not here.losses().keys() & there.losses().keys()
    assert files_of(there.folder / "output") == files_of(whole.folder / "output")


def test_two_processes_with_a_sharded_model_move_as_one(tmp_path: Path) -> None:
    """Under torchrun with gloo and FSDP2, SIGTERM has all of them save one checkpoint and leave; resumed, losses and
    weights are those of the run that was left alone."""
    parameters = {"steps": 24, "hidden": 8, "processes": 2}
    whole = Machine(tmp_path / "whole", parameters)
    uninterrupted = Process("sharded.py", whole)
    here = Machine(tmp_path / "here", {**parameters, "step_ms": 500})  # long before its end when it is asked
    process = Process("sharded.py", here)
    wait_for_step(here, 4)
    process.stop()
    assert process.exit_code() not in (0, -signal.SIGKILL), process.output
    assert uninterrupted.exit_code() == 0, uninterrupted.output
    (checkpoint,) = here.announced()
    assert {path.name for path in checkpoint.iterdir()} == {
        f"training_state-{rank}-of-2.{kind}" for rank in (1, 2) for kind in ("json", "safetensors")
    }
    assert not list(checkpoint.parent.glob(".rank-*"))
    there = Machine(tmp_path / "there", parameters, resume_from=checkpoint)
    again = Process("sharded.py", there)
    assert again.exit_code() == 0, again.output
    assert not here.losses().keys() & there.losses().keys()
    assert here.losses() | there.losses() == whole.losses()
    moved, expected = weights(there), weights(whole)
    assert moved.keys() == expected.keys()
    assert all((moved[name] == expected[name]).all() for name in expected)
