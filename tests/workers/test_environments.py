"""One environment for each set of requirements on a machine, whoever asks for it, at once or after a restart."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
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
    ended = plane.wait_exit(run_id, 60)
    assert ended.last_lines.endswith("from the wheel"), ended
    built, reused = BUILDS in plane.log(run_id), REUSES in plane.log(run_id)
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
        found.append((plane.wait_exit(run.run_id, 60).last_lines.split()[-1], BUILDS in plane.log(run.run_id)))
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
    assert plane.wait_exit(run.run_id, 60).last_lines.endswith("served")
    assert "environment:" not in plane.log(run.run_id)
