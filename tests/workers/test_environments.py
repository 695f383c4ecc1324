"""One environment for each set of requirements on a machine, whoever asks for it, at once or after a restart."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import uv

from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Fault, Plane
from tests.workers.test_preparing import wheel

Start = Callable[..., AgentProcess]

BUILDS, REUSES = "environment: installing", "environment: using the one built earlier"
SCRIPT = "import allpass_test_extra\nprint(allpass_test_extra.VALUE)"
SET = {"pip": ["allpass-test-extra>=2"], "environment_sha256": "1" * 64}


@pytest.fixture
def start(start_agent: Start, open_folder: Path) -> Start:
    """Starts agents whose installers find one wheel, and that share a cache as one machine's do."""
    wheel(open_folder, "allpass_test_extra", "2.5", "VALUE = 'from the wheel'")

    def start(root: Path | None = None, python: str = sys.executable) -> AgentProcess:
        return start_agent(
            root,
            ALLPASS_AGENT_PYTHON=python,
            ALLPASS_AGENT_CACHE=str(open_folder / "cache"),
            PIP_NO_INDEX="1",
            PIP_FIND_LINKS=str(open_folder),
            PIP_CONFIG_FILE="/dev/null",
        )

    return start


def ran(plane: Plane, run_id: str) -> bool:
    """It ran with what was installed; whether it built that itself."""
    ended = plane.wait_exit(run_id)
    assert ended.last_lines.endswith("from the wheel"), ended
    log = plane.wait_log(run_id, "from the wheel")  # before which is said where it comes from
    built, reused = BUILDS in log, REUSES in log
    assert built != reused
    return built


def test_runs_that_come_at_once_share_one_build(plane: Plane, start: Start, open_folder: Path) -> None:
    """One builds while the others wait for it, and all run with the same."""
    runs = [desired(plane, SCRIPT, job_id=f"job_{number}", **SET) for number in range(4)]
    for run in runs:
        plane.want(run)
    start()
    assert sorted(ran(plane, run.run_id) for run in runs) == [False, False, False, True]
    assert len(list((open_folder / "cache").glob("*/complete"))) == 1


def test_an_environment_outlives_its_agent(plane: Plane, start: Start, open_folder: Path) -> None:
    """After a restart on the same disk the next run finds it; what the machine's Python was replaced under is built
    again."""
    first = desired(plane, SCRIPT, **SET)
    plane.want(first)
    agent = start()
    assert ran(plane, first.run_id)
    agent.kill()
    plane.unlist(first.run_id)

    second = desired(plane, SCRIPT, job_id="job_2", **SET)
    plane.want(second)
    agent = start(agent.root)
    assert not ran(plane, second.run_id)

    (link,) = (open_folder / "cache").glob("*/venv/bin/python")
    link.unlink()
    link.symlink_to("/nowhere/python")
    third = desired(plane, SCRIPT, job_id="job_3", **SET)
    plane.want(third)
    assert ran(plane, third.run_id)


def test_a_build_that_was_interrupted_is_begun_anew(plane: Plane, start: Start, open_folder: Path) -> None:
    """The agent is killed in the middle of it: nothing half-built is ever used, and no lock stays behind."""
    hangs = open_folder / "hangs"
    hangs.touch()
    python = open_folder / "python"
    python.write_text(
        f'#!/bin/sh\nif [ "$3" = uv ] && [ "$5" = install ] && [ -e {hangs} ]; then echo hanging; exec sleep 600; fi\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    run = desired(plane, SCRIPT, **SET)
    plane.want(run)
    agent = start(python=str(python))
    plane.wait(lambda: list((open_folder / "cache").glob("*/venv")) and "hanging" in plane.log(run.run_id), "the build")
    agent.kill()
    assert not list((open_folder / "cache").glob("*/complete"))
    hangs.unlink()
    again = desired(plane, SCRIPT, job_id="job_2", **SET)
    plane.unlist(run.run_id)
    plane.want(again)
    start(agent.root, python=str(python))
    assert ran(plane, again.run_id)
    assert len(list((open_folder / "cache").glob("*/complete"))) == 1


PINNED = SET | {"pins": ["allpass-test-extra==2.5"]}
LIKE_FIRST, UNLIKE = "which this job began with", "environment: this machine cannot have allpass-test-extra=="


def test_a_job_is_given_the_version_that_it_began_with(plane: Plane, start: Start, open_folder: Path) -> None:
    """Though there is a newer one by now, which a job that begins there gets; either is built once."""
    wheel(open_folder, "allpass_test_extra", "2.9", "VALUE = 'newer, not from the wheel'")
    script = "import allpass_test_extra, importlib.metadata as m\nprint(m.version('allpass-test-extra'))"
    runs = [desired(plane, script, job_id=f"job_{number}", **spec) for number, spec in enumerate((PINNED, SET) * 2)]
    start()
    found = []
    for run in runs:
        plane.want(run)
        version = plane.wait_exit(run.run_id).last_lines.split()[-1]
        found.append((version, BUILDS in plane.wait_log(run.run_id, f"\n{version}\n")))
        plane.unlist(run.run_id)
    assert found == [("2.5", True), ("2.9", True), ("2.5", False), ("2.9", False)]
    assert LIKE_FIRST not in "".join(plane.log(run.run_id) for run in runs)
    assert len(list((open_folder / "cache").glob("*/complete"))) == 2


def test_a_version_that_is_not_to_be_had_is_done_without(plane: Plane, start: Start, open_folder: Path) -> None:
    """It was withdrawn, or never built for this machine: the job goes on with what it asks for, and its log says so."""
    run = desired(plane, SCRIPT, **SET | {"pins": ["allpass-test-extra==2.4"]})
    plane.want(run)
    start()
    assert ran(plane, run.run_id)
    log = plane.log(run.run_id)
    assert f"{UNLIKE}2.4, {LIKE_FIRST}, so the last bits of what comes may differ: " in log
    assert "2.4" in log.partition("may differ")[2], "the installer's own words"
    assert len(list((open_folder / "cache").glob("*/complete"))) == 1


def test_what_the_machine_has_already_is_not_built(plane: Plane, start: Start, open_folder: Path) -> None:
    """Its own Python serves."""
    version = metadata.version("pydantic")
    run = desired(
        plane, "print('served')", pip=["pydantic>=2"], environment_sha256="2" * 64, pins=[f"pydantic=={version}"]
    )
    plane.want(run)
    start()
    assert plane.wait_exit(run.run_id).last_lines.endswith("served")
    assert "environment:" not in plane.log(run.run_id)


# Machines whose Python has no pip, and the uv that the service ships


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python as systems pack it: without pip, uv and ensurepip."""
    home = tmp_path_factory.mktemp("bare") / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=120)
    (packages,) = home.glob("lib/python*/site-packages")
    # An environment that is built on top of it sees this as well.
    (packages / "sitecustomize.py").write_text("import sys\nsys.modules['ensurepip'] = None\n")
    for folder in (home, *home.parents[:2]):
        folder.chmod(0o755)
    return str(home / "bin" / "python")


def ships(plane: Plane, program: bytes | None = None) -> str:
    """The service has uv for this machine. Its name in the folder of programs."""
    plane.installers[os.uname().machine] = program or Path(uv.find_uv_bin()).read_bytes()
    return f"uv-{hashlib.sha256(plane.installers[os.uname().machine]).hexdigest()}"


def test_a_machine_without_pip_gets_its_packages(plane: Plane, start: Start, bare_python: str) -> None:
    """By the uv that the service ships, which is fetched once for all that is built there."""
    name = ships(plane)
    first, second = desired(plane, SCRIPT, **SET), desired(plane, SCRIPT, **SET | {"environment_sha256": "3" * 64})
    for run in (first, second):
        plane.want(run)
    agent = start(python=bare_python)
    assert ran(plane, first.run_id)
    assert ran(plane, second.run_id)
    assert [line for line in plane.requests if "/installers/" in line] == [
        f"GET /v1/agent/installers/{name.removeprefix('uv-')}"
    ]
    assert ((agent.root / "programs" / name).stat().st_mode & 0o777) == 0o755


def test_a_machine_without_pip_says_so_where_nothing_is_shipped(plane: Plane, start: Start, bare_python: str) -> None:
    """As an older service ships nothing, or ours has no uv for such machines: the installer's own words are told."""
    run = desired(plane, SCRIPT, **SET)
    plane.want(run)
    start(python=bare_python)
    ended = plane.wait_exit(run.run_id)
    assert "ensurepip" in str(ended)
    assert plane.installers_told


@pytest.mark.parametrize("code", ["not_found", "route_not_found"])
def test_an_older_service_is_done_without(plane: Plane, start: Start, bare_python: str, code: str) -> None:
    """It does not know the question: it is asked once, and not for each run."""
    plane.faults.append(Fault(r"POST /v1/agent/installer$", 404, code))
    for number in range(2):
        run = desired(plane, SCRIPT, job_id=f"job_{number}", **SET)
        plane.want(run)
        if not number:
            start(python=bare_python)
        assert "ensurepip" in str(plane.wait_exit(run.run_id))
        plane.unlist(run.run_id)
    assert len([line for line in plane.requests if line.endswith("/installer")]) == 1


def test_what_is_shipped_is_proven(plane: Plane, start: Start, bare_python: str) -> None:
    """Bytes that are others than announced are fetched anew, as is a program that somebody has changed on the disk."""
    name = ships(plane)
    plane.faults.append(Fault(r"GET /v1/agent/installers/", 200, times=1))  # an answer that is no program
    first = desired(plane, SCRIPT, **SET)
    plane.want(first)
    agent = start(python=bare_python)
    assert ran(plane, first.run_id)
    plane.unlist(first.run_id)
    program = agent.root / "programs" / name
    program.write_text("#!/bin/sh\necho evil; exit 0\n")
    second = desired(
        plane, SCRIPT, job_id="job_2", **SET | {"environment_sha256": "3" * 64, "pip": ["allpass-test-extra"]}
    )
    plane.want(second)
    assert ran(plane, second.run_id)
    assert "evil" not in plane.log(second.run_id)
    assert hashlib.sha256(program.read_bytes()).hexdigest() == name.removeprefix("uv-")


def test_a_program_that_cannot_run_here_is_not_needed(plane: Plane, start: Start, open_folder: Path) -> None:
    """One for another kind of system, say: this machine's own pip does it."""
    ships(plane, b"\x7fELF and nothing that runs")
    run = desired(plane, SCRIPT, **SET)
    plane.want(run)
    start(python=str(_without_uv(open_folder)))
    assert ran(plane, run.run_id)


def test_pip_is_tried_where_uv_has_failed(plane: Plane, start: Start, open_folder: Path) -> None:
    """It may know of an index that uv does not. Both are in the log."""
    ships(plane, b"#!/bin/sh\n[ $1 = --version ] || { echo no such index >&2; exit 1; }\n")
    run = desired(plane, SCRIPT, **SET)
    plane.want(run)
    start(python=str(_without_uv(open_folder)))
    assert ran(plane, run.run_id)
    plane.wait_log(run.run_id, "no such index")
    plane.wait_log(run.run_id, "environment: uv has failed; trying it with this machine's pip")


def _without_uv(folder: Path) -> Path:
    python = folder / "python-without-uv"
    python.write_text(f'#!/bin/sh\nif [ "$3" = uv ]; then exit 1; fi\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python
