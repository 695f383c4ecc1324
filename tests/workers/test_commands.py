"""Any command is a job: programs, shell scripts, and files of the code, with variables of the job's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane
from tests.workers.test_preparing import wheel
from tests.workers.test_standby import prepared, promote

Start = Callable[..., AgentProcess]

SHELL = """#!/bin/bash
echo "shell $* in $(basename "$PWD")"
for one in 1 2; do echo '{"step": '$one'}' >> $ALLPASS_METRICS_FILE; done
"""
TELLS = "import sys; print('python', sys.argv[1:])"
CODE = {
    "train.sh": SHELL,
    "scripts/deep.sh": "echo deep $1\n",
    "train.py": TELLS,
    "data.txt": "x",
    "bare": "#!/bin/sh\necho bare\n",
}


def run_of(plane: Plane, *command: str, **values: Any) -> Any:
    values = {"entrypoint": "", **values}
    template = {**values.pop("template", {}), **({"command": list(command)} if command else {})}
    run = desired(plane, tar_gz(dict(CODE)), template=template, **values)
    plane.want(run)
    return run


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["bash", "train.sh", "a b"], "shell a b in code"),
        (["./train.sh", "x"], "shell x in code"),
        (["scripts/deep.sh", "y"], "deep y"),
        (["./bare"], "bare"),
        (["python", "train.py", "--lr", "1"], "python ['--lr', '1']"),
        (["./train.py", "z"], "python ['z']"),
        (["python3", "-m", "train", "m"], "python ['m']"),
        (["sh", "-c", "echo $((6 * 7)) $WANDB_MODE"], "42 offline"),
        (["env", "A=1", "sh", "-c", "echo A is $A"], "A is 1"),
    ],
)
def test_a_command_runs_in_the_folder_of_the_code(
    plane: Plane, start_agent: Start, command: list[str], said: str
) -> None:
    """Its words reach it as they are, whether it is a program, a script with or without a right to be executed, or a
    module."""
    run = run_of(plane, *command, template={"env": {"WANDB_MODE": "offline"}})
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.last_lines.splitlines()[-1]) == (0, said)


def test_a_shell_script_is_an_entrypoint(plane: Plane, start_agent: Start) -> None:
    """It gets the words as its arguments, and the metrics file as any script does."""
    run = run_of(plane, entrypoint="train.sh", parameters=["1", "2"])
    start_agent()
    assert plane.wait_exit(run.run_id).last_lines.splitlines()[-1] == "shell 1 2 in code"
    assert plane.told(run.run_id).step == 2


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["axolotl-of-nobody", "train"],
            "the command 'axolotl-of-nobody' is no program of this machine or of a package",
        ),
        (["train.sh"], "write ./train.sh"),
        (["./gone.sh"], "the command './gone.sh' is not a file"),
        (["./data.txt"], "the command './data.txt' cannot be executed: its first line has no \"#!\""),
    ],
)
def test_what_cannot_be_run_is_told(plane: Plane, start_agent: Start, command: list[str], message: str) -> None:
    """As a fault of what was asked for, in words that name it and the mend."""
    run = run_of(plane, *command)
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert ended.environment_error is not None
    assert message in ended.environment_error
    assert not ended.machine_fault


def test_variables_of_the_job_never_take_the_place_of_ours(plane: Plane, start_agent: Start) -> None:
    """Whatever a template of another release may hold: the contract stands, and PYTHONPATH has both."""
    env = {
        "ALLPASS_JOB_ID": "another",
        "PATH": "/nowhere",
        "HOME": "/nowhere",
        "PYTHONPATH": "lib",
        "HF_HUB_OFFLINE": "1",
    }
    told = "import os; print([os.environ[name] for name in ('ALLPASS_JOB_ID', 'HOME', 'PYTHONPATH', 'HF_HUB_OFFLINE')])"
    run = run_of(plane, "python", "-c", told, template={"env": env})
    agent = start_agent()
    ended = plane.wait_exit(run.run_id)
    home = agent.root / "runs" / run.run_id
    expected = [run.job_id, str(home), f"{agent.root}/lib/allpass/hooks/startup:{agent.root}/lib:lib", "1"]
    assert ended.last_lines == str(expected), ended


def test_a_command_moves_to_a_machine_that_is_prepared(plane: Plane, start_agent: Start) -> None:
    """A shell script stands by too: nothing is loaded for it, and it begins when its job is there."""
    waits = run_of(plane, "bash", "train.sh", "moved", want="standby", epoch=2)
    start_agent()
    prepared(plane, waits)
    assert "shell" not in plane.log(waits.run_id)
    promote(plane, waits)
    assert plane.wait_exit(waits.run_id).last_lines.splitlines()[-1] == "shell moved in code"


def test_programs_of_the_machine_see_packages_of_the_job(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """A program that came with the machine's Python (as torchrun does) imports what the job installed on top, also when
    a shell script calls it."""
    wheel(open_folder, "allpass_test_extra", "2.5", "VALUE = 'from the wheel'")
    machine = open_folder / "bin"
    machine.mkdir()
    python = machine / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program = machine / "launch"
    program.write_text(f"#!{python}\nimport sys, allpass_test_extra\nprint(allpass_test_extra.VALUE, sys.argv[1:])\n")
    for one in (python, program):
        one.chmod(0o755)
    pip = {"pip": ["allpass-test-extra>=2"], "environment_sha256": "2" * 64}
    runs = [
        run_of(plane, "launch", "x", **pip),
        run_of(plane, "bash", "-c", "launch x", job_id="job_2", **pip),
    ]
    start_agent(
        None,
        ALLPASS_AGENT_PYTHON=str(python),
        ALLPASS_AGENT_CACHE=str(open_folder / "cache"),
        PATH=f"{machine}{os.pathsep}{os.environ['PATH']}",
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(open_folder),
        PIP_CONFIG_FILE="/dev/null",
    )
    for run in runs:
        assert plane.wait_exit(run.run_id).last_lines.endswith("from the wheel ['x']")
