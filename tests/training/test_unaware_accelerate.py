"""A loop over `accelerate` that knows nothing of Allpass is moved, if it goes on by itself: its end is the same."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.ports import reserved_port
from tests.training.scripts import Host, HostedProcess, Machine

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).parent / "unaware" / "accelerated.py"
OFF = {"ALLPASS_HOOKS": "off"}
_known: dict[str, str] = {}


@pytest.fixture
def hosts(hooked_hosts: tuple[Host, Host]) -> tuple[Host, Host]:
    return hooked_hosts


def prepared(folder: Path, resume: Path | None, environ: dict[str, str], **parameters: Any) -> Machine:
    """A machine with the script in its folder of code, where what it had saved is back in its place."""
    machine = Machine(folder, parameters, resume, {"ALLPASS_CODE_DIR": str(folder), **environ})
    shutil.copy(SCRIPT, folder / "train.py")
    if resume is not None:
        shutil.copytree(resume / "allpass-own", folder, dirs_exist_ok=True)
    return machine


def run(
    host: Host, folder: Path, resume: Path | None = None, environ: dict[str, str] | None = None, **parameters: Any
) -> tuple[Machine, HostedProcess]:
    machine = prepared(folder, resume, environ or {}, **parameters)
    process = host.start(str(folder / "train.py"), machine)
    process.code = process.exit_code()
    return machine, process


def result(machine: Machine) -> str:
    return (machine.folder / "result").read_text()


def undisturbed(host: Host, folder: Path, **parameters: Any) -> str:
    """What it comes to where nothing is hooked and nothing happens; trained once for all tests."""
    key = json.dumps(parameters, sort_keys=True)
    if key not in _known:
        machine, process = run(host, folder, environ=OFF, **parameters)
        assert process.code == 0, process.output
        assert machine.lines() == []
        _known[key] = result(machine)
    return _known[key]


def steps_of(process: HostedProcess) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+) ", process.output, re.MULTILINE)]


@pytest.mark.parametrize(
    ("parameters", "inside"),
    [
        ({}, "out/step_9"),
        ({"beside": True}, "out/step_9"),
        ({"ending": "fixed"}, "out/last"),
        ({"ending": "automatic"}, "out/checkpoints/checkpoint_2"),
    ],
)
def test_an_unchanged_script_moves_exactly(
    tmp_path: Path, hosts: tuple[Host, Host], parameters: dict[str, Any], inside: str
) -> None:
    """Asked to leave in step 8, it leaves when it has saved step 9, with what it writes beside its states; no step is
    taken twice, and the weights are those of the one that was left alone."""
    whole = undisturbed(hosts[0], tmp_path / "whole", **parameters)
    stopped, process = run(hosts[0], tmp_path / "stopped", stop_at=8, **parameters)
    assert process.code == 75, process.output
    assert steps_of(process) == list(range(1, 10))
    last = stopped.announced()[-1]
    assert [path.name for path in stopped.announced()] == ["step-00000003", "step-00000006", "step-00000009"]
    assert (last / "allpass-own" / inside).is_dir()
    second, process = run(hosts[1], tmp_path / "second", last, stop_at=14, **parameters)
    assert process.code == 75, process.output
    assert steps_of(process) == list(range(10, 16))
    third, process = run(hosts[0], tmp_path / "third", second.announced()[-1], **parameters)
    assert process.code == 0, process.output
    assert steps_of(process) == list(range(16, 21))
    assert "allpass:" not in process.output
    assert result(third) == whole


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"looks": False}, "did not look there for one to load"),
        ({"outside": True}, "only what is below the folder of its code can be put back"),
    ],
)
def test_what_could_not_go_on_is_said_and_not_moved(
    tmp_path: Path, hosts: tuple[Host, Host], parameters: dict[str, Any], says: str
) -> None:
    """It trains as it would have; asked to stop, it dies of it, as it would have."""
    given = {name: str(tmp_path / "elsewhere") if name == "outside" else value for name, value in parameters.items()}
    machine, process = run(hosts[0], tmp_path / "run", **given)
    assert process.code == 0, process.output
    assert process.output.count("this training is not moved by itself: ") == 1
    assert says in process.output
    assert machine.announced() == []
    assert result(machine) == undisturbed(hosts[0], tmp_path / "alone")
    shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)
    assert run(hosts[0], tmp_path / "stopped", stop_at=8, **given)[1].code == -15


def test_its_owner_hears_how_it_can_be_moved(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """Where the folder has a number in its name, with the option that says so."""
    assert "--checkpoints 'out/step_*'" in run(hosts[0], tmp_path / "run", looks=False)[1].output


def test_where_its_owner_has_said_it_the_agent_alone_looks(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"checkpoints": {"folders": "out/step_*"}}))
    machine, process = run(hosts[0], tmp_path / "run", environ={"ALLPASS_TEMPLATE_FILE": str(template)})
    assert (process.code, machine.lines()) == (0, [])


def test_one_that_begins_again_is_told_and_announces_nothing(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """It looks, and loads nothing: what it saves from then on would take the place of what it had."""
    stopped, _ = run(hosts[0], tmp_path / "stopped", stop_at=8)
    machine, process = run(hosts[1], tmp_path / "again", stopped.announced()[-1], loads=False)
    assert process.code == 0, process.output
    assert machine.announced() == []
    told = [line["training"]["refused"] for line in machine.lines() if "refused" in line.get("training", {})]
    assert len(told) == 1
    assert "at step 9" in told[0]
    assert "has begun again" in told[0]


def test_a_script_that_saves_too_seldom_leaves_when_it_is_asked(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """Nobody waits for a save that does not come: it goes on from the newest, as it would after any other end."""
    machine, process = run(hosts[0], tmp_path / "run", stop_at=8, patience_s=0.0)
    assert process.code == -15, process.output
    assert [path.name for path in machine.announced()] == ["step-00000003", "step-00000006"]


@pytest.mark.parametrize(
    "name", ["_find", "_begins_to_train", "_stepped", "_saved", "_announced", "_why_not", "_inside"]
)
def test_a_hook_that_fails_anywhere_harms_nothing(tmp_path: Path, hosts: tuple[Host, Host], name: str) -> None:
    machine, process = run(hosts[0], tmp_path / "run", breaks=name)
    assert process.code == 0, process.output
    assert "broken on purpose" in process.output
    assert result(machine) == undisturbed(hosts[0], tmp_path / "alone")


def both(hosts: tuple[Host, Host], folder: Path, resume: Path | None = None, **parameters: Any) -> Any:
    """Two processes of one training, as `accelerate launch` starts them."""
    started = []
    with reserved_port() as port:
        environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        machine = prepared(folder, resume, {**environ, "ACCELERATE_USE_CPU": "true"}, **parameters)
        for rank, host in enumerate(hosts):
            machine.environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(host.start(str(folder / "train.py"), machine))
        codes = [process.exit_code() for process in started]
    return machine, codes, started[0].output


def test_two_processes_leave_at_the_same_step(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    whole, codes, output = both(hosts, tmp_path / "whole")
    assert codes == [0, 0], output
    stopped, codes, output = both(hosts, tmp_path / "stopped", stop_at=8)
    assert codes == [75, 75], output
    last = stopped.announced()[-1]
    assert last.name == "step-00000009"
    assert {path.name for path in last.glob("allpass-own/out/step_9/random_states_*")} == {
        "random_states_0.pkl",
        "random_states_1.pkl",
    }
    resumed, codes, output = both(hosts, tmp_path / "resumed", last)
    assert codes == [0, 0], output
    assert result(resumed) == result(whole)


def test_where_one_process_of_two_saves_it_is_said_and_not_moved(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """The random states of the other one are lost; nobody waits for what never comes."""
    machine, codes, output = both(hosts, tmp_path / "run", alone=True)
    assert codes == [0, 0], output
    assert "save_state is called by one of its processes" in output
    assert machine.announced() == []


def test_several_processes_that_write_one_folder_again_and_again_spoil_no_checkpoint(
    tmp_path: Path, hosts: tuple[Host, Host]
) -> None:
    """The one that is kept shares no file with what they go on writing."""
    machine, codes, output = both(hosts, tmp_path / "run", ending="fixed")
    assert codes == [0, 0], output
    files = [path for path in machine.announced()[-1].rglob("*") if path.is_file()]
    assert files
    assert {path.stat().st_nlink for path in files} == {1}


def test_what_is_kept_for_a_move_never_fills_the_disk_for_the_script(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """Where its own save finds the disk full, older checkpoints of ours make room, and it is tried again."""
    machine, process = run(hosts[0], tmp_path / "run", full_at=9)
    assert process.code == 0, process.output
    assert [path.name for path in machine.announced()][2] == "step-00000009"
    _, process = run(hosts[0], tmp_path / "first", full_at=3)
    assert process.code == 1, "there was nothing of ours to delete"


def test_a_script_that_knows_of_us_is_let_be(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """It counts its steps, and saves, by itself."""
    script = SCRIPT.read_text().replace("import torch\n", "import allpass\nimport torch\n", 1)
    machine = prepared(tmp_path / "run", None, {})
    (machine.folder / "train.py").write_text(script)
    process = hosts[0].start(str(machine.folder / "train.py"), machine)
    assert process.exit_code() == 0
    assert machine.announced() == []
    assert "allpass:" not in process.output
