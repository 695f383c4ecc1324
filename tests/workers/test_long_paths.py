"""A machine whose folders have long names, as those of a stack below somebody's home have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane

Start = Callable[..., AgentProcess]


def _short_name(folder: Path, tag: str) -> Path:
    link = Path("/tmp") / f"allpass-{tag * 16}"
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    return link


# What data loaders with processes of their own do: a tensor is handed over through a socket in the temporary folder.
SHARES = r"""
import os, tempfile
from multiprocessing.connection import Listener
listener = Listener(family="AF_UNIX", authkey=b"x")
print("listens at", listener.address, flush=True)
print("below", os.path.realpath(tempfile.gettempdir()), flush=True)
listener.close()
"""


def test_sockets_can_be_made_in_the_temporary_folder(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """It lies in the run's own folder all the same, and goes with it."""
    root = tmp_path / ("long-" * 16)
    agent = start_agent(root)
    run = desired(plane, SHARES)
    plane.want(run)
    assert plane.wait_exit(run.run_id).exit_code == 0, plane.log(run.run_id)
    log = plane.wait_log(run.run_id, "\nbelow ")
    told = dict(line.rsplit(" ", 1) for line in log.splitlines() if " " in line)
    assert told["below"] == str(root / "runs" / run.run_id / "tmp")
    link = Path(told["listens at"]).parents[1]
    assert link.is_symlink()
    plane.unlist(run.run_id)
    plane.wait(lambda: not link.is_symlink(), "the end of the run's folders")
    assert agent.process.poll() is None


def test_short_ones_are_used_as_they_are(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """No name is made up where none is needed."""
    start_agent(open_folder)
    run = desired(plane, "import tempfile; print(tempfile.gettempdir())")
    plane.want(run)
    assert plane.wait_exit(run.run_id).exit_code == 0
    place = open_folder / "runs" / run.run_id / "tmp"
    assert (str(place) in plane.wait_log(run.run_id, "/")) == (len(str(place)) <= 60)


def test_what_killed_machines_left_is_removed(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """A machine that is killed leaves the short name of its run's folder behind. The next one removes it, but not that
    of a machine that lives, nor what only looks alike."""
    dead, living = _short_name(tmp_path / "gone", "d"), _short_name(tmp_path, "e")
    alike = dead.with_name("allpass-of-somebody")
    alike.unlink(missing_ok=True)
    alike.symlink_to(tmp_path / "gone")
    try:
        start_agent(tmp_path / ("long-" * 16))
        run = desired(plane, "print('done')")
        plane.want(run)
        assert plane.wait_exit(run.run_id).exit_code == 0
        assert (dead.is_symlink(), living.is_symlink(), alike.is_symlink()) == (False, True, True)
    finally:
        for link in (dead, living, alike):
            link.unlink(missing_ok=True)
