"""A Trainer script that knows nothing of Allpass is moved, and ends as if it had not been, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ports import reserved_port
from tests.training.scripts import DEADLINE_S, HOOKED, Host, HostedProcess, Machine, files_of, wait_for_step

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).parent / "unaware" / "trainer.py"
STEPS = 12
LOOKS = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "eval_loss"}
AT_EPOCHS = {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"}
KEEPS = {"save_strategy": "steps", "save_steps": 2}

NOWHERE = {"ALLPASS_CHECKPOINT_DIR": "/proc/nothing", "ALLPASS_METRICS_FILE": "/proc/nothing/metrics"}
OFTEN = {"ALLPASS_CHECKPOINT_INTERVAL_S": "0.000001"}


@pytest.fixture
def hosts(hooked_hosts: tuple[Host, Host]) -> tuple[Host, Host]:
    return hooked_hosts


_known: dict[str, tuple[Machine, HostedProcess]] = {}


def undisturbed(host: Host, folder: Path, **parameters: Any) -> Machine:
    """What a training comes to where nothing is hooked and nothing happens; trained once for all tests."""
    key = json.dumps(parameters, sort_keys=True)
    if key not in _known:
        _known[key] = run(host, folder, **parameters, environment={"ALLPASS_HOOKS": "off"})
    machine, process = _known[key]
    assert process.code == 0, process.output
    assert machine.lines() == []
    return machine


def run(host: Host, folder: Path, resume_from: Path | None = None, **parameters: Any) -> tuple[Machine, HostedProcess]:
    environment = parameters.pop("environment", {})
    machine = Machine(folder, {"steps": STEPS, **parameters}, resume_from, environment)
    process = host.start(str(SCRIPT), machine)
    process.code = process.exit_code()
    return machine, process


def history(machine: Machine) -> Any:
    """What the Trainer itself has logged, over all its runs."""
    return json.loads((machine.folder / "history.json").read_text())


def logged_losses(machine: Machine) -> dict[int, str]:
    return {line["step"]: repr(line["loss"]) for line in history(machine) if "loss" in line}


def says_that_it_saves(machine: Machine) -> bool:
    return any(line.get("training", {}).get("saves") for line in machine.lines())


def told_totals(machine: Machine) -> set[int]:
    told = (line.get("training", {}).get("total_steps") for line in machine.lines())
    return {total for total in told if total is not None}


def train_loss(machine: Machine) -> float:
    """What `train()` has returned: the mean over the steps that it took."""
    return float((machine.folder / "train_loss").read_text())


def results(machine: Machine) -> dict[str, bytes]:
    """Of the model that the script saved; the arguments name folders and hosts."""
    return {
        name: data for name, data in files_of(machine.folder / "final").items() if "weights" in name or "model" in name
    }


def check_moved(hosts: tuple[Host, Host], folder: Path, stop_at: int, **parameters: Any) -> tuple[Machine, Machine]:
    """Stopped in the middle of a step and resumed elsewhere, it is the one that was left alone."""
    whole = undisturbed(hosts[0], folder / "whole", **parameters)
    stopped, process = run(hosts[0], folder / "stopped", **parameters, stop_at=stop_at)
    assert process.code == 75, process.output
    assert not (stopped.folder / "final").exists()
    assert stopped.announced()[-1].name == f"step-{stop_at:08d}"
    assert says_that_it_saves(stopped)
    resumed, process = run(hosts[1], folder / "resumed", stopped.announced()[-1], **parameters)
    assert process.code == 0, process.output
    assert "the hook failed" not in process.output
    assert told_totals(stopped) == told_totals(resumed) == {STEPS}
    assert {**stopped.losses(), **resumed.losses()} == logged_losses(whole)
    assert not stopped.losses().keys() & resumed.losses().keys(), "a step was taken twice"
    assert history(resumed) == history(whole)
    losses = [float(loss) for loss in logged_losses(whole).values()]
    assert min(losses) - 0.02 < train_loss(resumed) < max(losses) + 0.02, "no mean of the steps of this run"
    assert results(resumed) == results(whole) != {}
    return stopped, resumed


@pytest.mark.parametrize(
    ("stop_at", "parameters"),
    [
        (5, {}),
        (7, {"model": "full"}),  # the last step of the first epoch
        (5, {"arguments": {"gradient_accumulation_steps": 2, "logging_steps": 3}}),
        (4, {"arguments": {"gradient_accumulation_steps": 3, "dataloader_num_workers": 2}}),
        (7, {"arguments": {**AT_EPOCHS, "load_best_model_at_end": True}}),
        (5, {"packed": True, "arguments": {"dataloader_num_workers": 2, "logging_steps": 4}}),
        (6, {"model": "full", "packed": True, "arguments": {"max_grad_norm": 0.1, "lr_scheduler_type": "cosine"}}),
        (5, {"arguments": {"lr_scheduler_type": "reduce_lr_on_plateau", **LOOKS, **KEEPS}}),
        (5, {"arguments": {"dataloader_num_workers": 2, **LOOKS}}),
    ],
)
def test_an_unchanged_script_moves_exactly(
    tmp_path: Path, hosts: tuple[Host, Host], stop_at: int, parameters: dict[str, Any]
) -> None:
    """Losses, what the Trainer logs and the model's bytes; also where a mean lies on both sides of the move."""
    check_moved(hosts, tmp_path, stop_at, **parameters)


def test_what_it_keeps_for_the_end_moves_with_it(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """The best checkpoint and the patience that is left: a run that ends early, with its best model, still does."""
    arguments = {**LOOKS, **KEEPS, "load_best_model_at_end": True, "save_total_limit": 1, "learning_rate": 0.2}
    _, resumed = check_moved(hosts, tmp_path, 5, arguments=arguments, patience=2)
    last = history(resumed)[-1]["step"]
    assert last < STEPS, "it was to end early"
    ended, process = run(hosts[0], tmp_path / "ended", arguments=arguments, patience=2, stop_at=last)
    assert process.code == 0, "a stop in its last step is answered by finishing"
    assert results(ended) == results(resumed)


def test_saves_that_it_did_not_ask_for_are_none_of_its_business(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """With a short interval its output folder is what it would have been, and each checkpoint that is kept resumes."""
    arguments = {**KEEPS, "save_steps": 4, "save_total_limit": 2}
    whole = undisturbed(hosts[0], tmp_path / "whole", arguments=arguments)
    often = {"ALLPASS_CHECKPOINT_INTERVAL_S": "0.000001"}
    machine, process = run(hosts[0], tmp_path / "often", arguments=arguments, environment=often)
    assert process.code == 0, process.output
    assert files_of(machine.folder / "out").keys() == files_of(whole.folder / "out").keys()
    assert results(machine) == results(whole)
    assert len(machine.announced()) >= 3
    kept = [path for path in machine.announced() if path.exists()][-1]
    resumed, process = run(hosts[1], tmp_path / "resumed", kept, arguments=arguments)
    assert process.code == 0, process.output
    assert results(resumed) == results(whole)


def test_its_own_saves_are_announced(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """Each when it is complete, but for the one of the last step; its folders stay where they are."""
    machine, process = run(hosts[0], tmp_path / "run", arguments={**KEEPS, "save_steps": 4})
    assert process.code == 0, process.output
    assert [path.name for path in machine.announced()] == ["step-00000004", "step-00000008"]
    out = machine.folder / "out"
    assert {path.name for path in out.iterdir()} == {f"checkpoint-{step}" for step in (4, 8, 12)}
    assert not list(out.rglob("*allpass*"))


def test_a_stop_in_its_last_step_is_answered_by_finishing(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    machine, process = run(hosts[0], tmp_path / "run", stop_at=STEPS)
    assert process.code == 0, process.output
    assert machine.announced() == []
    assert results(machine)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"arguments": {"save_only_model": True}}, "save_only_model=True"),
        ({"arguments": {"ignore_data_skip": True}}, "ignore_data_skip=True"),
        ({"keeps": "weights"}, "the optimizer's state"),
        ({"collator": "random"}, "random numbers while it loads its data"),
        ({"collator": "random", "arguments": {"dataloader_num_workers": 2}}, "random numbers while it loads its data"),
    ],
)
def test_what_could_not_be_exact_is_said_and_not_moved(
    tmp_path: Path, hosts: tuple[Host, Host], parameters: dict[str, Any], says: str
) -> None:
    """It trains as it would have; asked to stop, it dies of it, as it would have."""
    machine, process = run(hosts[0], tmp_path / "run", **parameters, environment=OFTEN)
    assert process.code == 0
    assert says in process.output
    assert machine.announced() == []
    assert says_that_it_saves(machine) == ("keeps" in parameters), "what is saved is known when it is"
    assert results(machine) == results(undisturbed(hosts[0], tmp_path / "alone", **parameters))
    stopped, process = run(hosts[0], tmp_path / "stopped", **parameters, stop_at=6)
    assert process.code == -15
    assert stopped.announced() == []


def test_of_several_trainings_the_first_is_moved(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """The others could not be told apart after a move: the log says so, and no step is told twice."""
    machine, process = run(hosts[0], tmp_path / "run", times=2, arguments={**KEEPS, "save_steps": 4})
    assert process.code == 0, process.output
    assert "trains more than once" in process.output
    steps = [line["step"] for line in machine.lines() if "loss" in line and "checkpoint" not in line]
    assert steps == list(range(1, STEPS + 1))


def test_the_scripts_own_checkpoint_wins_unless_the_job_is_further(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """One that it names each time it starts would otherwise take all steps back that were made since."""
    own, process = run(hosts[0], tmp_path / "own", stop_at=6, arguments={**KEEPS, "save_steps": 4})
    four, six = own.folder / "out" / "checkpoint-4", own.announced()[-1]
    further, process = run(hosts[0], tmp_path / "further", six, resume=str(four))
    assert min(further.losses()) == 7, process.output
    behind, process = run(hosts[0], tmp_path / "behind", own.announced()[0], resume=str(six))
    assert min(behind.losses()) == 7, process.output
    true, process = run(hosts[0], tmp_path / "true", six, resume=True)
    assert min(true.losses()) == 7, process.output


def both(hosts: tuple[Host, Host], folder: Path, resume_from: Path | None = None, **parameters: Any) -> Machine:
    """Two processes of one training, as `torchrun` starts them, that leave with the same code."""
    machine = Machine(folder, {"steps": STEPS, **parameters}, resume_from)
    started = []
    with reserved_port() as port:
        for rank, host in enumerate(hosts):
            machine.environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
            machine.environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            started.append(host.start(str(SCRIPT), machine))
        codes = {process.exit_code() for process in started}
    assert codes == {75 if parameters.get("stop_at") else 0}, started[0].output
    return machine


def torchrun(folder: Path, stop_after: int, **parameters: Any) -> Machine:
    """`torchrun` itself is sent SIGTERM when that step was reported."""
    machine = Machine(folder, {"steps": STEPS, **parameters})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    environ = {**os.environ, **HOOKED, **machine.environment, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (machine.folder / "output.log").open("wb") as file:
        process = subprocess.Popen(command, cwd=machine.folder, env=environ, stdout=file, stderr=subprocess.STDOUT)
    wait_for_step(machine, stop_after)
    process.terminate()
    assert process.wait(DEADLINE_S) != 0
    return machine


def test_two_processes_agree_on_the_step(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """Only one of them hears of the stop: both save one step later, together, and the move is exact. So it is when
    `torchrun` hears of it, and passes it on."""
    arguments = {"logging_steps": 2, "gradient_accumulation_steps": 2, "ddp_backend": "gloo"}
    whole = both(hosts, tmp_path / "whole", arguments=arguments)
    one = both(hosts, tmp_path / "one", arguments=arguments, stop_at=3, stop_rank=1)
    assert [path.name for path in one.announced()] == ["step-00000004"]
    launcher = torchrun(tmp_path / "launcher", 2, arguments=arguments, step_ms=500)
    for stopped in (one, launcher):
        resumed = both(hosts, tmp_path / f"{stopped.folder.name}-resumed", stopped.announced()[-1], arguments=arguments)
        assert {**stopped.losses(), **resumed.losses()} == whole.losses()
        assert results(resumed) == results(whole) != {}


def test_where_nothing_can_be_saved_it_trains_as_it_would(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """No checkpoint, no metrics, and asked to stop it cannot: it goes on to its end, with the same result."""
    alone = undisturbed(hosts[0], tmp_path / "alone")
    machine, process = run(hosts[0], tmp_path / "run", stop_at=3, environment={**OFTEN, **NOWHERE})
    assert process.code == 0, process.output
    assert "the training goes on" in process.output
    assert len(process.output.split("the training goes on")) < 6, "it is said once, not at every step"
    assert results(machine) == results(alone)


@pytest.mark.parametrize("name", ["begun", "logged", "_wishes", "_write", "_link", "begin"])
def test_a_hook_that_fails_anywhere_harms_nothing(tmp_path: Path, hosts: tuple[Host, Host], name: str) -> None:
    """Whatever of it raises: the training is what it would have been."""
    alone = undisturbed(hosts[0], tmp_path / "alone", arguments=KEEPS)
    machine, process = run(hosts[0], tmp_path / "run", breaks=name, environment=OFTEN, arguments=KEEPS)
    assert process.code == 0, process.output
    assert "broken on purpose" in process.output
    assert results(machine) == results(alone)
    assert files_of(machine.folder / "out").keys() == files_of(alone.folder / "out").keys()


def test_what_is_kept_for_a_move_never_fills_the_disk_for_the_script(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """Where its own save finds the disk full, older checkpoints of ours make room, and it is tried again."""
    machine, process = run(hosts[0], tmp_path / "run", full_at=2, arguments={**KEEPS, "save_steps": 3})
    assert process.code == 0, process.output
    assert (machine.folder / "out" / "checkpoint-9" / "optimizer.pt").is_file()
    assert len(list((machine.folder / "checkpoints").glob("step-*"))) <= 2
