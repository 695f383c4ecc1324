"""A Lightning script that knows nothing of Allpass is moved, and ends as if it had not been, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import SCRIPTS, python_of
from tests.training.scripts import HOOKED, Host, HostedProcess, Machine

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
SCRIPT = SCRIPTS / "lit.py"
STEPS = 21  # three epochs of seven
OFTEN = {"ALLPASS_CHECKPOINT_INTERVAL_S": "0.000001"}
OFF = {"ALLPASS_HOOKS": "off"}
KINDS = (("hooked", OFTEN), ("off", OFF))
BY_STEPS = {"max_epochs": -1, "max_steps": 20}
_known: dict[str, Machine] = {}


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    modules = ("lightning.pytorch", "pytorch_lightning", "torchmetrics")
    pair = tuple(Host(seed, HOOKED, python_of("lightning"), *modules) for seed in (1, 2))
    yield pair[0], pair[1]
    for host in pair:
        host.close()


def run(
    host: Host, folder: Path, resume: Path | None = None, environ: dict[str, str] | None = None, **parameters: Any
) -> tuple[Machine, HostedProcess]:
    machine = Machine(folder, parameters, resume, environ or {})
    process = host.start(str(SCRIPT), machine)
    process.code = process.exit_code()
    return machine, process


def undisturbed(host: Host, folder: Path, **parameters: Any) -> Machine:
    """What a training comes to where nothing is hooked and nothing happens; trained once for all tests."""
    key = json.dumps(parameters, sort_keys=True)
    if key not in _known:
        _known[key], process = run(host, folder, environ=OFF, **parameters)
        assert process.code == 0, process.output
        assert _known[key].lines() == []
    return _known[key]


def results(machine: Machine) -> list[bytes]:
    """The weights, what was logged last, and which checkpoint is the best."""
    return [(machine.folder / name).read_bytes() for name in ("final.pt", "told.json", "best")]


def told(*machines: Machine) -> dict[int, dict[str, Any]]:
    """All that was reported of each step."""
    found: dict[int, dict[str, Any]] = {}
    for line in (line for machine in machines for line in machine.lines()):
        if "checkpoint" not in line and "training" not in line:
            found.setdefault(line["step"], {}).update(line)
    return found


@pytest.mark.parametrize(
    ("stop_at", "parameters"),
    [
        (3, {"workers": 2, "own_generator": True}),
        (10, {}),
        (10, {"library": "pytorch_lightning"}),
        (14, {}),  # the last step of the second epoch
        (5, {"trainer": {"accumulate_grad_batches": 3}}),
        (6, {"trainer": {"accumulate_grad_batches": 3}, "schedule": "cycle"}),
        (9, {"crops": True, "own_generator": True}),
        (9, {"crops": True, "workers": 2}),
        (9, {"trainer": {"val_check_interval": 2}, "schedule": "plateau"}),
        (11, {"trainer": {"log_every_n_steps": 3}, "schedule": "plateau"}),
        (14, {"trainer": BY_STEPS}),
        (14, {"trainer": {**BY_STEPS, "limit_val_batches": 0}}),
        (16, {"trainer": {**BY_STEPS, "val_check_interval": 3, "check_val_every_n_epoch": None}}),
    ],
)
def test_an_unchanged_script_moves_exactly(
    tmp_path: Path, hosts: tuple[Host, Host], stop_at: int, parameters: dict[str, Any]
) -> None:
    """Weights, numbers of steps and of epochs, the best checkpoint; also where data is random while it is loaded."""
    whole = undisturbed(hosts[0], tmp_path / "whole", **parameters)
    often, process = run(hosts[0], tmp_path / "often", environ=OFTEN, always=True, **parameters)
    assert process.code == 0, process.output
    assert len(often.announced()) >= 6, "saves that the script did not ask for"
    assert results(often) == results(whole)
    stopped, process = run(hosts[0], tmp_path / "stopped", stop_at=stop_at, **parameters)
    assert process.code == 75, process.output
    assert stopped.announced()[-1].name == f"step-{stop_at:08d}"
    resumed, process = run(hosts[1], tmp_path / "resumed", stopped.announced()[-1], **parameters)
    assert process.code == 0, process.output
    assert "allpass:" not in process.output
    assert results(resumed) == results(whole)
    assert told(stopped, resumed) == told(often) != {}
    assert not told(stopped).keys() & told(resumed).keys(), "a step was taken twice"


def test_it_says_how_far_it_goes_and_that_it_saves(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    machine, _ = run(hosts[0], tmp_path / "run")
    facts: dict[str, Any] = {}
    for line in machine.lines():
        facts.update(line.get("training", {}))
    assert facts == {"micro_batch": 4, "accumulation": 1, "total_steps": STEPS, "saves": True}


def test_a_stop_in_its_last_step_is_answered_by_finishing(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    machine, process = run(hosts[0], tmp_path / "run", stop_at=STEPS)
    assert process.code == 0, process.output
    assert results(machine) == results(undisturbed(hosts[0], tmp_path / "whole"))


def test_the_scripts_own_checkpoint_wins_unless_the_job_is_further(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    own, _ = run(hosts[0], tmp_path / "own", environ=OFTEN, trainer={"max_epochs": 2})
    fourteen = str(next(own.folder.glob("lightning_logs/version_0/checkpoints/last.ckpt")))
    ten, _ = run(hosts[0], tmp_path / "ten", stop_at=10)
    machine, process = run(hosts[0], tmp_path / "behind", ten.announced()[-1], own=fourteen)
    assert min(told(machine)) == 15, process.output
    late, _ = run(hosts[0], tmp_path / "late", stop_at=16)
    machine, process = run(hosts[0], tmp_path / "further", late.announced()[-1], own=fourteen)
    assert min(told(machine)) == 17, process.output


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"manual": True}, "the model steps its optimizers itself"),
        ({"unsized": True, "trainer": BY_STEPS}, "its data has no known length"),
        ({"trainer": {"reload_dataloaders_every_n_epochs": 1}}, "reload_dataloaders_every_n_epochs"),
        ({"trainer": {"strategy": "ddp_fork", "devices": 2}}, "several processes"),
    ],
)
def test_what_could_not_be_exact_is_said_and_not_moved(
    tmp_path: Path, hosts: tuple[Host, Host], parameters: dict[str, Any], says: str
) -> None:
    """It trains as it would have, and asked to stop, it stops as it would have."""
    machine, process = run(hosts[0], tmp_path / "run", environ=OFTEN, **parameters)
    assert process.code == 0, process.output
    assert "this training is not moved by itself: " in process.output
    assert says in process.output
    assert machine.announced() == []
    assert not any(line.get("training", {}).get("saves") for line in machine.lines())
    assert results(machine) == results(undisturbed(hosts[0], tmp_path / "alone", **parameters))
    if "several" in says:  # its main process waits for good for those that have left, with a hook or without
        return
    ends = [run(hosts[0], tmp_path / name, environ=environ, stop_at=5, **parameters)[1].code for name, environ in KINDS]
    assert ends[0] == ends[1] != 75


def test_of_several_trainings_the_first_is_moved(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    machine, process = run(hosts[0], tmp_path / "run", times=2)
    assert process.code == 0, process.output
    assert "the script trains more than once" in process.output
    assert max(told(machine)) == STEPS


@pytest.mark.parametrize(
    "name", ["begin", "_set_up", "_is_set_up", "_run_begins", "_batch_ended", "_save", "_report", "_epoch_ended"]
)
def test_a_hook_that_fails_anywhere_harms_nothing(tmp_path: Path, hosts: tuple[Host, Host], name: str) -> None:
    alone = undisturbed(hosts[0], tmp_path / "alone")
    machine, process = run(hosts[0], tmp_path / "run", environ=OFTEN, breaks=name)
    assert process.code == 0, process.output
    assert "broken on purpose" in process.output
    assert results(machine) == results(alone)
