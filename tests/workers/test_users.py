"""Each run's code is a user of its own, whatever the machine is like; where that cannot be, it does not run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allpass.wire.agent import DesiredRun
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
from tests.workers.test_isolation import needs_users
from tests.workers.test_sweep import BOMB, DAEMON, FORK_CHAIN, begin, until
from workers.agent import blocks, sweep, views

Start = Callable[..., AgentProcess]
TELLS = "import os\nprint(os.getuid())"


@pytest.fixture
def closed_python(open_folder: Path) -> str:
    """A Python in a folder that nobody but its owner may enter."""
    folder = open_folder / "closed"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    folder.chmod(0o700)
    return str(folder / "bin" / "python")


@pytest.fixture
def block() -> Iterator[blocks.Block]:
    block = blocks.claim(blocks.DEFAULT)
    yield block
    sweep.end_users(block.first, block.uids[:10])
    block.close()


def ran(plane: Plane, script: str = TELLS, **more: Any) -> DesiredRun:
    run = desired(plane, script, **more)
    plane.want(run)
    plane.wait_exit(run.run_id)
    return run


def notices(plane: Plane) -> list[dict[str, str]]:
    return [notice for sync in plane.syncs for notice in sync.host.get("notices", [])]


@needs_users
@pytest.mark.parametrize("given", [{}, {"ALLPASS_AGENT_SINGLE_RUN": "1", "ALLPASS_AGENT_SHARES_HOST": "1"}])
def test_a_root_agent_that_cannot_give_up_rights_runs_no_code(
    plane: Plane, start_agent: Start, closed_python: str, given: dict[str, str]
) -> None:
    """The run says why and what to do, the machine is to blame for it, and the server hears of it once."""
    start_agent(ALLPASS_AGENT_PYTHON=closed_python, **given)
    for job_id in ("job_1", "job_2"):
        ended = plane.told(ran(plane, job_id=job_id).run_id).exit
        assert ended is not None
        assert (ended.exit_code, ended.machine_fault, ended.last_lines.count("0")) == (None, True, 0)
        assert ended.environment_error is not None
        for said in ("runs no code", closed_python, "Permission denied", "ALLPASS_USER_CODE_AS_ROOT=true"):
            assert said in ended.environment_error
    plane.wait(lambda: notices(plane), "a notice")
    assert {notice["kind"] for notice in notices(plane)} == {"node_refuses_code"}


@needs_users
@pytest.mark.parametrize(
    ("variable", "reason"),
    [("ALLPASS_AGENT_CODE_AS_ROOT", "a setting allows it"), ("ALLPASS_AGENT_SINGLE_RUN", "for one run")],
)
def test_code_runs_as_root_only_where_that_is_said_by_name(
    plane: Plane, start_agent: Start, closed_python: str, variable: str, reason: str
) -> None:
    """By the owner, or because the machine is thrown away after the run; and the server hears of it."""
    start_agent(ALLPASS_AGENT_PYTHON=closed_python, **{variable: "1"})
    assert plane.told(ran(plane).run_id).exit.last_lines == "0"  # type: ignore[union-attr]
    plane.wait(lambda: notices(plane), "a notice")
    (notice,) = {(one["kind"], one["message"]) for one in notices(plane)}
    assert notice[0] == "node_runs_code_as_root"
    assert reason in notice[1]


@needs_users
def test_a_closed_home_stays_closed_and_what_runs_need_of_it_is_seen(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """Python, environment and machine lie below a folder of mode 0700: the run reaches them, and nothing else of it; on
    the disk nothing has changed."""
    home = open_folder / "home"
    (home / "tools").mkdir(parents=True)
    (home / "machine").mkdir()
    (home / "secret").write_text("the owner's")
    (home / "tools" / "link").symlink_to("../versions/one")
    (home / "versions" / "one").mkdir(parents=True)
    (home / "versions" / "secret").write_text("the owner's")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "versions" / "one" / "venv"], check=True)
    home.chmod(0o700)
    script = f"""
import os, pathlib, sys
home = pathlib.Path({str(home)!r})
print(os.getuid() != 0, sys.prefix)
for attempt in (lambda: os.listdir(home), (home / "secret").read_text, (home / "versions" / "secret").read_text,
                lambda: (home / "mine").write_text("x"), lambda: os.listdir(home / "machine" / "spool")):
    try: print("DID", attempt())
    except OSError as error: print(type(error).__name__)
"""
    start_agent(home / "machine", ALLPASS_AGENT_PYTHON=str(home / "tools" / "link" / "venv" / "bin" / "python"))
    said = plane.told(ran(plane, script).run_id).exit
    assert said is not None
    first, *rest = said.last_lines.splitlines()
    assert first == f"True {home / 'tools/link/venv'}"
    assert rest == ["PermissionError", "FileNotFoundError", "FileNotFoundError", "OSError", "PermissionError"]
    assert (home.stat().st_mode & 0o777, sorted(path.name for path in home.iterdir())) == (
        0o700,
        ["machine", "secret", "tools", "versions"],
    )


@needs_users
@pytest.mark.parametrize("script", [DAEMON, FORK_CHAIN], ids=["daemon", "fork chain"])
def test_nothing_of_a_finished_job_is_there_when_the_next_one_begins(
    plane: Plane, start_agent: Start, script: str
) -> None:
    """What left its group and session, or forks faster than it can be named, ends with its run, and no later run is
    that user."""
    start_agent()
    leaves = f"import os\nprint(os.getuid(), flush=True)\nif os.fork() == 0:\n    exec({script!r})\nos._exit(0)"
    first = plane.told(ran(plane, leaves).run_id).exit
    assert first is not None
    uid = int(first.last_lines)
    assert uid != os.getuid()
    for _ in range(5):
        assert sweep.processes_of(range(uid, uid + 1)) == {}
    following = plane.told(ran(plane, job_id="job_2").run_id).exit
    assert following is not None
    assert int(following.last_lines) > uid


@needs_users
def test_a_fork_bomb_takes_no_more_than_its_share(plane: Plane, start_agent: Start) -> None:
    """It meets its own limit, while agent and other runs start processes as before."""
    bomb = "import os, time\nprint('up', flush=True)\n" + BOMB
    start_agent(ALLPASS_AGENT_MOST_PROCESSES="60")
    run = desired(plane, bomb)
    plane.want(run)
    plane.wait(lambda: "up" in plane.log(run.run_id), "the bomb")
    other = plane.told(ran(plane, job_id="job_2").run_id).exit
    assert other is not None
    uid = int(other.last_lines) - 1
    assert len(sweep.processes_of(range(uid, uid + 1)).get(uid, [])) <= 60
    plane.ask(run.run_id, "kill")
    plane.wait_exit(run.run_id)
    assert sweep.processes_of(range(uid, uid + 1)) == {}


@needs_users
def test_an_agent_ends_what_an_earlier_one_left(plane: Plane, start_agent: Start, block: blocks.Block) -> None:
    """Killed with its guards, it left a daemon; the next agent of this machine begins with nobody there, and gives the
    daemon's user to nobody."""
    given = {"ALLPASS_AGENT_USER_UID": str(block.first)}
    agent = start_agent(**given)
    uid = int(plane.told(ran(plane).run_id).exit.last_lines)  # type: ignore[union-attr]
    agent.kill()
    begin(uid, DAEMON).wait(20)
    until(lambda: sweep.processes_of(block.uids), "daemon")
    start_agent(agent.root, **given)
    assert int(plane.told(ran(plane, job_id="job_2").run_id).exit.last_lines) > uid  # type: ignore[union-attr]
    assert sweep.processes_of(block.uids) == {}


@needs_users
def test_a_machine_with_a_process_that_cannot_be_killed_is_given_up(
    plane: Plane, start_agent: Start, block: blocks.Block
) -> None:
    """Waiting for a disk that does not answer, say: the server is told, and no run begins there any more."""
    agent = start_agent(ALLPASS_AGENT_USER_UID=str(block.first))
    ran(plane)
    program = agent.root / "programs" / "sweep.py"
    powerless = "os.kill(-1, signal.SIGKILL)", "None"
    program.write_text(program.read_text().replace(*powerless).replace("PATIENCE_S = 5.0", "PATIENCE_S = 0.2"))
    guard = agent.root / "programs" / "guard.py"
    guard.write_text(guard.read_text().replace("signal.SIGKILL)", "0)").replace("_S = 5.0", "_S = 0.2"))
    leaves = f"import os\nif os.fork() == 0:\n    exec({DAEMON!r})\nos._exit(0)"
    ran(plane, leaves, job_id="job_2")
    told = plane.wait(lambda: [one.host for one in plane.syncs if one.host.get("fault")], "a fault")[-1]
    assert "cannot be killed" in told["fault"]
    assert told["draining"] is True
    ended = plane.told(ran(plane, job_id="job_3").run_id).exit
    assert ended is not None
    assert ended.machine_fault
    assert "at fault" in str(ended.environment_error)


def test_views_show_what_is_needed_and_nothing_else(tmp_path: Path) -> None:
    """Planned from the modes on the disk: the highest closed folder is covered, and what lies below is shown through
    links, once."""
    closed = tmp_path / "closed"
    (closed / "deep" / "er" / "home").mkdir(parents=True)
    (closed / "link").symlink_to("deep/er")
    (tmp_path / "open").mkdir()
    closed.chmod(0o700)
    (view,) = views.plan([str(closed / "link" / "home"), str(closed / "deep" / "er" / "home"), str(tmp_path / "open")])
    assert closed.is_relative_to(view["cover"])
    assert [path for path in view["shown"] if "closed" in path] == [str(closed / "deep" / "er" / "home")]
    assert view["links"] == [[str(closed / "link"), "deep/er"]]
