"""A process that stands by between jobs of the built-in recipe: it serves the next one like it, and nobody else."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from allpass.wire.agent import DesiredRun
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane
from tests.workers.test_isolation import SYSTEM_PYTHON
from workers.agent import spares
from workers.agent.config import load
from workers.agent.machine import Machine
from workers.agent.process import User
from workers.agent.spares import SpareKind, Spares

Start = Callable[..., AgentProcess]
TELLS = """
import json, os, sys
told = {"pid": os.getpid(), "uid": os.getuid(), "cwd": os.getcwd(), "argv": sys.argv, "path": sys.path,
        "environ": dict(os.environ), "umask": os.umask(0o077)}
print(json.dumps(told))
"""
RECIPE = tar_gz({"train.py": TELLS, "recipe.json": "{}"})
# Not parameters of the recipe, so nothing is loaded ahead: these tests are not about torch.
PARAMETERS = {"model": "m", "task": "sft", "method": "lora", "of": "no recipe"}


def recipe(plane: Plane, **spec: Any) -> DesiredRun:
    return desired(plane, RECIPE, **{"parameters": PARAMETERS, **spec})


def told_by(plane: Plane, run: DesiredRun) -> dict[str, Any]:
    """Run it to its end; what it told of itself, with what names the run left out."""
    plane.want(run)
    assert plane.wait_exit(run.run_id).exit_code == 0, plane.log(run.run_id)
    (line,) = [line for line in plane.wait_log(run.run_id, '{"pid": ').splitlines() if line.startswith("{")]
    plane.unlist(run.run_id)
    told: dict[str, Any] = json.loads(line.replace(run.run_id, "RUN"))
    return told


def standing_by(plane: Plane, agent: AgentProcess) -> tuple[int, Path]:
    """The process that stands by, once it has loaded, and its folder."""

    def look() -> tuple[int, Path] | None:
        for folder in (agent.root / "runs").glob("spare-*"):
            ready = folder / "tmp" / ".loaded"
            found = [pid for pid in processes() if command(pid)[-1:] == [str(ready)] and "warm.py" in command(pid)[1]]
            if ready.exists() and found:
                return found[0], folder
        return None

    found: tuple[int, Path] = plane.wait(look, "a process that stands by")
    return found


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def test_the_next_job_like_it_runs_in_the_process_that_stood_by(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """It finds what it would have found: its own environment, folder, arguments and log, and nothing of another run."""
    has_users = os.getuid() == 0 and Path(SYSTEM_PYTHON).exists()
    python = {"ALLPASS_AGENT_PYTHON": SYSTEM_PYTHON} if has_users else {}
    agent = start_agent(open_folder / "machine", **python)
    cold = told_by(plane, recipe(plane))
    pid, folder = standing_by(plane, agent)
    warm = told_by(plane, recipe(plane, job_id="job_1"))
    assert warm.pop("pid") == pid != cold.pop("pid")
    uids = [cold.pop("uid"), warm.pop("uid")]
    assert len({*uids, os.getuid()}) == (3 if has_users else 1), "where there are users, each has one of its own"
    assert warm == cold
    plane.wait(lambda: not folder.exists(), "the end of what it had")
    assert standing_by(plane, agent)[0] != pid


@pytest.mark.parametrize(
    "spec",
    [{"project_id": "prj_2"}, {"parameters": {**PARAMETERS, "model": "n"}}, {"secrets": {"TOKEN": "x"}}],
    ids=["another project", "another model", "secrets"],
)
def test_another_job_begins_afresh_and_has_the_machine(plane: Plane, start_agent: Start, spec: dict[str, Any]) -> None:
    """The process that stood by ends: it never sees what it is not for."""
    agent = start_agent()
    told_by(plane, recipe(plane))
    pid, folder = standing_by(plane, agent)
    assert told_by(plane, recipe(plane, **spec))["pid"] != pid
    plane.wait(lambda: not command(pid) and not folder.exists(), "its end")


def test_it_ends_with_the_agent(plane: Plane, start_agent: Start) -> None:
    """Killed or asked to leave, the agent leaves nobody behind."""
    agent = start_agent()
    told_by(plane, recipe(plane))
    pid, _ = standing_by(plane, agent)
    agent.kill()
    plane.wait(lambda: not command(pid), "its end")


def test_a_spare_that_died_is_not_missed(plane: Plane, start_agent: Start) -> None:
    """The next job begins as every other."""
    agent = start_agent()
    told_by(plane, recipe(plane))
    pid, _ = standing_by(plane, agent)
    os.kill(pid, 9)
    plane.wait(lambda: not command(pid), "its end")
    assert told_by(plane, recipe(plane))["pid"] != pid


@pytest.mark.parametrize(
    ("free_bytes", "environ", "is_started"),
    [(64 * 1024**3, {}, True), (1024**3, {}, False), (64 * 1024**3, {"ALLPASS_AGENT_SPARES": "0"}, False)],
    ids=["room", "no room", "switched off"],
)
def test_it_stands_by_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, environ: dict[str, str], is_started: bool
) -> None:
    """Memory is looked at first, and it can be switched off."""
    config = load({"ALLPASS_URL": "http://x", "ALLPASS_AGENT_ROOT": str(tmp_path), **environ})
    made: list[SpareKind] = []

    class Made:
        def __init__(self, kind: SpareKind, *_: object) -> None:
            made.append(kind)

        def close(self) -> None:
            pass

    monkeypatch.setattr(spares, "SETTLE_S", 0)
    monkeypatch.setattr(spares, "free_bytes", lambda: free_bytes)
    monkeypatch.setattr(spares, "Spare", Made)
    users = SimpleNamespace(take=lambda: None, user=lambda _: User())
    machine = SimpleNamespace(config=config, guard=tmp_path / "guard.py", warm=tmp_path / "warm.py", users=users)
    keeper = Spares(cast("Machine", machine))
    spec = {"project_id": "prj_1", "environment_sha256": "0", "parameters": PARAMETERS, "template": {}}
    keeper.keep(spec, "python")
    for thread in threading.enumerate():
        if thread.name == "spare":
            thread.join(60)
    assert len(made) == is_started
    keeper._spare = None
    keeper.close()
