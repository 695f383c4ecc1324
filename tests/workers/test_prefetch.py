"""What the next job needs is here when it comes: fetched while another runs, given up for whoever needs the machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpass.wire.agent import DesiredRun
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Fault, Plane
from tests.workers.test_preparing import wheel
from workers.agent.environment import forget_unused
from workers.agent.prefetch import NICE

Start = Callable[..., AgentProcess]

REUSES = "environment: using the one built earlier"
BUSY = "import time\nprint('busy', flush=True)\nwhile True: time.sleep(0.05)"
SCRIPT = "import os, allpass_test_extra\nprint(os.getuid())\nprint(allpass_test_extra.VALUE)"
# Stands for the machine's Python: tells when an environment is begun, as whom, how nicely; waits till it may go on.
PYTHON = """#!/bin/sh
if [ "$3" = venv ]; then
    echo "$(id -u) $(nice)" >> {folder}/begun
    while [ ! -e {folder}/go ]; do sleep 0.02; done
fi
exec {python} "$@"
"""


@pytest.fixture
def machine(open_folder: Path) -> Path:
    """A folder with one wheel and a Python that waits for the file `go`."""
    wheel(open_folder, "allpass_test_extra", "2.5", "VALUE = 'from the wheel'")
    python = open_folder / "python"
    python.write_text(PYTHON.format(folder=open_folder, python=sys.executable))
    python.chmod(0o755)
    (open_folder / "begun").touch()
    (open_folder / "begun").chmod(0o666)
    return open_folder


@pytest.fixture
def start(machine: Path, start_agent: Start) -> Start:
    def start(**environ: str) -> AgentProcess:
        return start_agent(
            machine / "root",
            ALLPASS_AGENT_PYTHON=str(machine / "python"),
            ALLPASS_AGENT_CACHE=str(machine / "cache"),
            PIP_NO_INDEX="1",
            PIP_FIND_LINKS=str(machine),
            PIP_CONFIG_FILE="/dev/null",
            **environ,
        )

    return start


def with_wheel(plane: Plane, name: str = "next", **more: Any) -> DesiredRun:
    """A run of a script of its own that needs an environment."""
    more = {"pip": ["allpass-test-extra>=2"], "environment_sha256": "1" * 64, **more}
    return desired(plane, f"{SCRIPT}\n# {name}", job_id=f"job_{name}", **more)


def busy(plane: Plane) -> DesiredRun:
    """A run that takes this machine until it is killed."""
    run = desired(plane, BUSY, job_id="job_busy")
    plane.want(run)
    plane.wait(lambda: (report := plane.report(run.run_id)) is not None and report.phase == "running", "a busy machine")
    return run


def begun(machine: Path) -> list[list[int]]:
    """The user and the niceness of each environment that was begun."""
    return [list(map(int, line.split())) for line in (machine / "begun").read_text().splitlines()]


def fetched(plane: Plane, run: DesiredRun) -> int:
    return plane.read.count(run.spec.bundle_sha256)


def ended_well(plane: Plane, run: DesiredRun) -> None:
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.last_lines.splitlines()[-1]) == (0, "from the wheel"), plane.log(run.run_id)


def heard(plane: Plane) -> None:
    """Until the agent has taken in what it is told now."""
    plane.wait(lambda: any(one.seen == plane.version and one.wait_ms for one in plane.syncs), "the next call")


def is_idle(agent: AgentProcess) -> bool:
    """Nothing of a prefetch is left in the folders of runs."""
    return not list(agent.root.glob("*/prefetch-*"))


def test_the_next_job_finds_its_code_and_its_environment(plane: Plane, start: Start, machine: Path) -> None:
    """Both were fetched while another job ran, by a process of low priority and few rights."""
    (machine / "go").touch()
    agent = start()
    busy(plane)
    coming = with_wheel(plane)
    plane.advise(coming)
    plane.wait(lambda: list((machine / "cache").glob("*/ahead")), "an environment")
    plane.wait(lambda: is_idle(agent), "an end")
    assert fetched(plane, coming) == 1
    ((uid, nice),) = begun(machine)
    assert nice >= NICE
    plane.want(coming)
    ended_well(plane, coming)
    assert fetched(plane, coming) == 1
    plane.wait_log(coming.run_id, REUSES)
    runs_as = int(plane.wait_exit(coming.run_id).last_lines.split()[0])
    assert (uid != runs_as) == (runs_as != os.getuid()), "where there are users, nobody's is given to another"
    assert not list((machine / "cache").glob("*/ahead"))
    assert list((machine / "cache").glob("*/complete"))


def test_a_job_that_comes_meanwhile_waits_for_what_is_fetched(plane: Plane, start: Start, machine: Path) -> None:
    """Its code is on its way, then its environment is being built: neither is begun twice."""
    start()
    busy(plane)
    coming = with_wheel(plane)
    plane.held.add(coming.spec.bundle_sha256)
    plane.advise(coming)
    plane.wait(lambda: fetched(plane, coming), "the fetching of its code")
    plane.next = []
    plane.want(coming)
    plane.wait(lambda: plane.report(coming.run_id), "its beginning")
    plane.release.set()
    plane.wait(lambda: begun(machine), "its environment")
    assert fetched(plane, coming) == 1
    later = with_wheel(plane, "later", pip=["allpass-test-extra>=2.1"], environment_sha256="2" * 64)
    (machine / "go").touch()
    ended_well(plane, coming)
    (machine / "go").unlink()
    plane.advise(later)
    plane.wait(lambda: len(begun(machine)) == 2, "the next environment")
    plane.next = []
    plane.want(later)
    plane.wait(lambda: plane.report(later.run_id), "its beginning")
    (machine / "go").touch()
    ended_well(plane, later)
    assert [len(begun(machine)), fetched(plane, later)] == [2, 1]
    plane.wait_log(later.run_id, REUSES)


def test_another_run_has_the_machine_to_itself(plane: Plane, start: Start, machine: Path) -> None:
    """What is under way is given up for it, and begun again once that run runs."""
    agent = start()
    busy(plane)
    coming = with_wheel(plane)
    plane.advise(coming)
    plane.wait(lambda: begun(machine), "an environment")
    other = desired(plane, "print('other')", job_id="job_other")
    plane.held.add(other.spec.bundle_sha256)
    plane.want(other)
    plane.wait(lambda: is_idle(agent), "an end")
    assert not list((machine / "cache").glob("*/venv"))
    (machine / "go").touch()
    plane.release.set()
    assert plane.wait_exit(other.run_id).last_lines == "other"
    plane.wait(lambda: list((machine / "cache").glob("*/ahead")), "an environment")
    assert len(begun(machine)) == 2


def test_what_is_not_to_come_any_more_is_given_up(plane: Plane, start: Start, machine: Path) -> None:
    """Its job was cancelled, say. The one after it is fetched."""
    agent = start()
    busy(plane)
    plane.advise(with_wheel(plane))
    plane.wait(lambda: begun(machine), "an environment")
    plane.advise()
    plane.wait(lambda: is_idle(agent), "an end")
    assert not list((machine / "cache").glob("*/venv"))
    other = desired(plane, "print('other')", job_id="job_other")
    plane.advise(other)
    plane.wait(lambda: fetched(plane, other), "its code")


def test_a_machine_that_leaves_fetches_nothing(plane: Plane, start: Start, machine: Path) -> None:
    """Its agent ends at once, and with it what was under way."""
    agent = start()
    coming = with_wheel(plane)
    plane.wait(lambda: plane.syncs, "a call")
    plane.advise(coming)
    plane.wait(lambda: begun(machine), "an environment")
    agent.terminate()
    assert agent.wait() == 0
    assert is_idle(agent)
    assert not list((machine / "cache").glob("*/venv"))


def test_what_fails_is_left_alone_and_hinders_nobody(plane: Plane, start: Start, machine: Path) -> None:
    """Code that the store does not have, requirements that nobody can meet: tried once, whatever is told meanwhile."""
    (machine / "go").touch()
    agent = start()
    busy(plane)
    absent = {"pip": ["allpass-test-absent"], "environment_sha256": "2" * 64}
    bad = with_wheel(plane, "bad", parameters={"model": "org/needs-it"}, **absent)
    plane.faults.append(Fault(f"GET /objects/{bad.spec.bundle_sha256}", 404))
    good = with_wheel(plane, "good")
    plane.advise(bad, good)
    plane.wait(lambda: list((machine / "cache").glob("*/ahead")), "the other's environment")
    for _ in range(3):
        plane.advise(bad, good)
        heard(plane)
    plane.wait(lambda: is_idle(agent), "an end")
    assert [fetched(plane, bad), fetched(plane, good), len(begun(machine))] == [1, 1, 2]


def test_code_is_kept_for_its_own_project_and_only_if_there_is_room(plane: Plane, start: Start) -> None:
    """Another project fetches the same bytes again; what is larger than all that is kept is not fetched at all."""
    agent = start(ALLPASS_AGENT_CONTENTS_BYTES="4000")
    plane.wait(lambda: plane.syncs, "a call")
    code = tar_gz({"train.py": "print('mine')"})
    large = desired(plane, tar_gz({"train.py": "pass", "data": os.urandom(8000)}), job_id="job_large")
    coming = desired(plane, code, project_id="prj_2")
    plane.advise(large, coming)
    plane.wait(lambda: list(agent.root.glob("contents/*/*")), "its code")
    mine = desired(plane, code, job_id="job_mine")
    plane.want(mine)
    plane.wait_exit(mine.run_id)
    theirs = desired(plane, code, job_id="job_theirs", project_id="prj_2")
    plane.want(theirs)
    plane.wait_exit(theirs.run_id)
    assert [fetched(plane, coming), fetched(plane, large)] == [2, 0]


def test_it_can_be_switched_off(plane: Plane, start: Start) -> None:
    """A run then fetches for itself, as ever."""
    start(ALLPASS_AGENT_AHEAD="0")
    run = desired(plane, "print('here')")
    busy(plane)
    plane.advise(run)
    heard(plane)
    assert fetched(plane, run) == 0
    plane.want(run)
    assert plane.wait_exit(run.run_id).exit_code == 0


def test_of_environments_that_nobody_used_few_are_kept(tmp_path: Path) -> None:
    """The newest; those that a run has asked for stay whatever comes, and so does one that is being looked at."""
    for number, marks in enumerate([["ahead"], [], ["ahead"], ["ahead"], []]):
        home = tmp_path / f"environment-{number}"
        (home / "venv").mkdir(parents=True)
        for mark in ["complete", *marks]:
            (home / mark).write_text(json.dumps([]))
            os.utime(home / mark, ns=(number, number))

    def left() -> list[int]:
        return sorted(int(path.name[-1]) for path in tmp_path.glob("environment-?"))

    forget_unused(tmp_path, 2)
    assert left() == [1, 2, 3, 4]
    forget_unused(tmp_path, 0)
    assert left() == [1, 4]
