"""A run that was stopped and resumed elsewhere is the run that was never stopped, bit for bit."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.training.scripts import EXAMPLES, Host, Machine, Process, files_of, wait_for_step

SMALL = {"hidden": 32, "layers": 1, "batch": 2, "sequence": 32, "rank": 4}

TINY_HF = {"hidden": 32, "layers": 1, "batch": 2}


def _adapter(machine: Machine) -> bytes:
    return (machine.folder / "output" / "adapter_model.safetensors").read_bytes()


def _check_same_course(whole: Machine, parts: list[Machine]) -> None:
    """Every step was taken exactly once, with the loss of the uninterrupted run."""
    losses: dict[int, str] = {}
    for part in parts:
        assert not losses.keys() & part.losses().keys(), "a step was taken twice"
        losses |= part.losses()
    assert losses == whole.losses()


@pytest.mark.training
@pytest.mark.parametrize(
    ("script", "parameters"),
    [
        ("train.py", {**SMALL, "steps": 24}),
        ("train_hf.py", {**TINY_HF, "steps": 24}),
    ],
)
def test_lora_training_resumes_exactly(
    tmp_path: Path, hosts: tuple[Host, Host], script: str, parameters: dict[str, object]
) -> None:
    """Losses and adapter bytes after stop, copy of the announced folder, and resume equal the uninterrupted run's."""
    here, there = hosts
    whole = Machine(tmp_path / "whole", parameters)
    uninterrupted = there.start(script, whole)
    held = {"HELD_SCRIPT": str(EXAMPLES / script), "HELD_AT": "7"}
    stopped = Machine(tmp_path / "stopped", parameters, environment=held)
    process = here.start("../tests/training/held.py", stopped)
    wait_for_step(stopped, 7)
    process.stop()
    assert process.exit_code() == 75, process.output
    assert uninterrupted.exit_code() == 0, uninterrupted.output

    (checkpoint,) = stopped.announced()
    assert not list(stopped.folder.glob("output/**/*.safetensors")), "a stopped run has no results"
    resumed = Machine(tmp_path / "resumed", parameters, resume_from=checkpoint)
    last = there.start(script, resumed)
    assert last.exit_code() == 0, last.output

    _check_same_course(whole, [stopped, resumed])
    assert _adapter(resumed) == _adapter(whole)
    config = json.loads((resumed.folder / "output" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    losses = [float(loss) for loss in whole.losses().values()]
    assert min(losses[-5:]) < losses[0] - 0.3, "the loss falls"


@pytest.mark.training
def test_a_trainer_saves_at_intervals_and_resumes_from_any(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """With a short interval the Trainer checkpoints while it runs, keeps two, leaves its own output folder clean, and
    every checkpoint that is kept continues exactly."""
    parameters = {**TINY_HF, "steps": 8}
    machine = Machine(tmp_path / "whole", parameters, environment={"ALLPASS_CHECKPOINT_INTERVAL_S": "0.000001"})
    process = hosts[0].start("train_hf.py", machine)
    assert process.exit_code() == 0, process.output
    assert [path.name for path in machine.announced()] == [f"step-{step:08d}" for step in range(1, 8)]
    kept = [path for path in machine.announced() if path.exists()]
    assert [path.name for path in kept] == ["step-00000006", "step-00000007"]
    assert not list((machine.folder / "output" / "trainer").glob("checkpoint-*"))
    for checkpoint in kept:
        resumed = Machine(tmp_path / checkpoint.name, parameters, resume_from=checkpoint)
        again = hosts[1].start("train_hf.py", resumed)
        assert again.exit_code() == 0, again.output
        assert _adapter(resumed) == _adapter(machine)
        step_of = int(checkpoint.name.removeprefix("step-"))
        assert resumed.losses() == {step: loss for step, loss in machine.losses().items() if step > step_of}


@pytest.mark.training
def test_a_trainer_stopped_in_its_last_step_finishes(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """A stop in the last step is answered by finishing, with results, code 0 and no checkpoint since."""
    machine = Machine(tmp_path / "run", {**TINY_HF, "steps": 4, "stop_at": 4})
    process = hosts[0].start("../tests/training/hf_stops_itself.py", machine)
    assert process.exit_code() == 0, process.output
    assert machine.announced() == []
    assert sorted(machine.losses()) == [1, 2, 3, 4]
    assert _adapter(machine)


@pytest.mark.training
def test_a_trainers_own_checkpoints_and_accumulation_are_respected(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """With gradient accumulation, sparse logging and its own save_steps, a stopped Trainer loses no logged loss, keeps
    the folders it asked for, and resumes to the same adapter."""
    options = {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 2, "logging_steps": 3}
    parameters = {**TINY_HF, "steps": 9, "trainer": options}
    script = "../tests/training/hf_stops_itself.py"
    whole = Machine(tmp_path / "whole", parameters)
    process = hosts[0].start(script, whole)
    assert process.exit_code() == 0, process.output
    assert sorted(whole.losses()) == [3, 6, 9]
    assert [path.name for path in whole.announced()] == [f"step-{step:08d}" for step in (2, 4, 6, 8)]
    assert {path.name for path in (whole.folder / "output" / "trainer").iterdir()} == {
        f"checkpoint-{step}" for step in (2, 4, 6, 8, 9)
    }

    stopped = Machine(tmp_path / "stopped", {**parameters, "stop_at": 5})
    process = hosts[0].start(script, stopped)
    assert process.exit_code() == 75, process.output
    assert sorted(stopped.losses()) == [3, 5]
    resumed = Machine(tmp_path / "resumed", parameters, resume_from=stopped.announced()[-1])
    process = hosts[1].start(script, resumed)
    assert process.exit_code() == 0, process.output
    assert _adapter(resumed) == _adapter(whole)
    assert resumed.losses()[9] == whole.losses()[9]


@pytest.mark.training
def test_a_trainer_that_saves_weights_only_is_refused(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """save_only_model could not be resumed from: training does not begin, and the message says what to remove."""
    machine = Machine(tmp_path / "run", {**TINY_HF, "steps": 2, "trainer": {"save_only_model": True}})
    process = hosts[0].start("../tests/training/hf_stops_itself.py", machine)
    assert process.exit_code() == 1
    assert "save_only_model=True" in process.output.splitlines()[-1]
    assert machine.losses() == {}


@pytest.mark.parametrize("seed", range(4))
def test_a_plain_script_resumes_exactly_wherever_it_is_stopped(tmp_path: Path, seed: int) -> None:
    """Stopped at several random steps, each time moved to a fresh folder, the script ends where it would have."""
    chance = random.Random(seed)
    parameters = {"steps": 60, "step_ms": 3, "seed": seed}
    whole = Machine(tmp_path / "whole", {**parameters, "step_ms": 0})
    assert Process("plain_loop.py", whole).exit_code() == 0
    parts: list[Machine] = []
    for stop_after in (*sorted(chance.sample(range(1, 50), 3)), None):
        resume_from = parts[-1].announced()[-1] if parts else None
        folder = tmp_path / f"part{len(parts)}"
        machine = Machine(folder, {**parameters, "hold_at": stop_after}, resume_from=resume_from)
        parts.append(machine)
        process = Process("../tests/training/held_loop.py", machine)
        if stop_after is not None:
            wait_for_step(machine, stop_after)
            process.stop()
        assert process.exit_code() == (0 if stop_after is None else 75), process.output
    _check_same_course(whole, parts)
    assert files_of(parts[-1].folder / "output") == files_of(whole.folder / "output")


def test_a_plain_script_checkpoints_at_its_interval(tmp_path: Path) -> None:
    """Checkpoints come at the interval too, and each of them is complete."""
    machine = Machine(
        tmp_path / "run", {"steps": 30, "step_ms": 2}, environment={"ALLPASS_CHECKPOINT_INTERVAL_S": "0.01"}
    )
    assert Process("plain_loop.py", machine).exit_code() == 0
    assert len(machine.announced()) >= 3
    for folder in machine.announced():
        assert set(files_of(folder)) == {"state.json"}
    assert sorted(machine.losses()) == list(range(1, 31))


def test_a_failing_script_shows_its_own_traceback(tmp_path: Path) -> None:
    """The failing example reports two steps, then ends with code 1 and names its error last."""
    machine = Machine(tmp_path / "run", {})
    process = Process("fails.py", machine)
    assert process.exit_code() == 1
    assert sorted(machine.losses()) == [1, 2]
    assert process.output.splitlines()[-1].startswith("ValueError: no learning rate for step 3")
