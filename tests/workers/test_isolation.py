"""What user code must not get: the node's token, the agent's rights, files of others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import PATIENCE_S, TOKEN, Plane
from workers.agent import blocks, config

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., AgentProcess]
SYSTEM_PYTHON = "/usr/bin/python3"
needs_users = pytest.mark.skipif(
    os.name != "posix" or os.getuid() != 0 or not Path(SYSTEM_PYTHON).exists(),
    reason="own users need root and a Python that everybody may run",
)

# Looks for the token in every place that a process can look at.
SPY = """
import os, pathlib
found = ["environ"] if TOKEN in str(os.environ) else []
pid = os.getpid()
while pid > 1:
    for name in ("environ", "cmdline"):
        try:
            if TOKEN.encode() in pathlib.Path(f"/proc/{pid}/{name}").read_bytes(): found.append(f"{pid} {name}")
        except PermissionError: pass
    pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().find(b"pytest") >= 0: break
print("found", found, "uid", os.getuid())
"""


def spy() -> str:
    return f"TOKEN = {TOKEN[:6]!r} + {TOKEN[6:]!r}\n" + SPY


def test_the_token_is_in_no_environment_and_no_command_line(plane: Plane, start_agent: Start) -> None:
    """Not in the script's own environment and not in that of any process above it, even for the same user."""
    run = desired(plane, spy())
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).last_lines.startswith("found [] ")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system shows no first environment")
@pytest.mark.parametrize("name", [config.TOKEN, config.JOIN_TOKEN])
def test_the_token_is_blotted_out_where_the_kernel_shows_it(name: str) -> None:
    """Afterwards the first environment holds the rest as it was, and the agent itself still has the token."""
    script = (
        "import os, pathlib\nfrom workers.agent.config import blot_out_tokens, take_credential\n"
        "done, shown = blot_out_tokens(os.environ), pathlib.Path('/proc/self/environ').read_bytes()\n"
        "print(done, b'tok-1' in shown, b'BEFORE=x' in shown, b'Z_AFTER=y' in shown, *take_credential(os.environ))"
    )
    environ = {"BEFORE": "x", name: "tok-1", "Z_AFTER": "y"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False", "True", "True", "tok-1", str(name == config.JOIN_TOKEN)]


@pytest.mark.parametrize("name", [config.TOKEN, config.JOIN_TOKEN])
def test_a_token_that_cannot_be_blotted_out_goes_by_pipe(name: str) -> None:
    """The environment for the second start has no token, only where to read it; once read, it is gone."""
    environ = config.rewritten_environ({name: "tok-1", "OTHER": "x"})
    assert "tok-1" not in str(environ)
    assert environ["OTHER"] == "x"
    assert config.take_credential(environ) == ("tok-1", name == config.JOIN_TOKEN)
    assert config.TOKEN_FD not in environ


def test_the_token_may_come_by_file_and_the_file_goes(
    plane: Plane, zipapp: Path, tmp_path: Path, start_agent: Start
) -> None:
    """A token file is read once and deleted."""
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    start_agent(ALLPASS_NODE_TOKEN="", ALLPASS_NODE_TOKEN_FILE=str(file))
    plane.wait(lambda: plane.syncs, "a sync")
    assert not file.exists()


@needs_users
def test_each_run_has_a_user_of_its_own(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """Where the machine allows it, code runs as an unprivileged user who cannot read another run's files."""
    wait = "import os, time\nprint('home', os.environ['HOME'], os.getuid(), flush=True)\ntime.sleep(600)"
    neighbour = desired(plane, wait, job_id="job_2")
    plane.want(neighbour)
    agent = start_agent(open_folder, ALLPASS_AGENT_PYTHON=SYSTEM_PYTHON)
    line = plane.wait(lambda: "home" in plane.log(neighbour.run_id) and plane.log(neighbour.run_id), "its home")
    _, home, uid = line.split()
    assert any(int(uid) in part for part in blocks.DEFAULT)
    script = f"""
import os
for path in ({home!r}, {home!r} + "/parameters.json", {str(open_folder / "spool")!r}, "/proc/{agent.pid}/mem"):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
        print("READ", path)
    except PermissionError:
        print("denied")
open(os.environ["ALLPASS_OUTPUT_DIR"] + "/mine", "w").write("m")
open("beside-the-code", "w").write("x")
print("uid", os.getuid())
"""
    run = desired(plane, script)
    plane.want(run)
    ended = plane.wait_exit(run.run_id)
    assert ended.last_lines == f"denied\ndenied\ndenied\ndenied\nuid {int(uid) + 1}"
    assert set(plane.artifacts[run.run_id]) == {"mine"}


@needs_users
def test_links_to_what_the_user_may_not_read_are_not_followed(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """The agent may read more than the script: links in its folders gain the script nothing."""
    secret = open_folder / "secret"
    secret.write_text("the host's own")
    secret.chmod(0o600)
    script = f"""
import os
out, checkpoints = os.environ["ALLPASS_OUTPUT_DIR"], os.environ["ALLPASS_CHECKPOINT_DIR"]
os.symlink({str(secret)!r}, out + "/stolen")
open(out + "/own", "w").write("own")
os.symlink(out + "/own", out + "/link-inside")
os.mkdir(checkpoints + "/c")
os.symlink({str(secret)!r}, checkpoints + "/c/stolen")
open(os.environ["ALLPASS_METRICS_FILE"], "a").write('{{"step": 1, "checkpoint": "c"}}\\n')
open(os.environ["ALLPASS_METRICS_FILE"], "a").write('{{"step": 2, "checkpoint": "../../../secret"}}\\n')
os.mkfifo(out + "/pipe")
"""
    run = desired(plane, script)
    plane.want(run)
    start_agent(open_folder / "machine", ALLPASS_AGENT_PYTHON=SYSTEM_PYTHON)
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert set(plane.artifacts[run.run_id]) == {"own", "link-inside"}
    assert plane.committed(run.run_id) == []
    assert b"the host's own" not in plane.objects.values()
    for said in ("stolen leads out of the run's folder", "is not below the checkpoint directory"):
        plane.wait_log(run.run_id, said)


@needs_users
def test_an_agent_without_rights_hides_its_memory(plane: Plane, zipapp: Path, open_folder: Path) -> None:
    """When agent and script are the same unprivileged user, the script still cannot look into the agent."""
    script = """
import os, pathlib
agent = int(pathlib.Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
for name in ("environ", "mem", "maps"):
    try:
        open(f"/proc/{agent}/{name}", "rb").read(1)
        print("READ", name)
    except PermissionError:
        print("denied")
print("same", os.getuid())
"""
    root = open_folder / "machine"
    root.mkdir()
    os.chown(root, 61500, 61500)
    copy = open_folder / "agent.pyz"
    copy.write_bytes(zipapp.read_bytes())
    environ = {"ALLPASS_URL": plane.url, "ALLPASS_NODE_TOKEN": TOKEN, "ALLPASS_AGENT_ROOT": str(root)}
    run = desired(plane, script)
    plane.want(run)
    agent = subprocess.Popen(
        [SYSTEM_PYTHON, str(copy)],
        env=environ,
        user=61500,
        group=61500,
        extra_groups=[],
        cwd="/",
        start_new_session=True,
    )
    try:
        assert plane.wait_exit(run.run_id).last_lines == "denied\ndenied\ndenied\nsame 61500"
    finally:
        agent.terminate()
        assert agent.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "ALLPASS_URL"),
        ({"ALLPASS_URL": "http://x"}, "set ALLPASS_JOIN_TOKEN"),
        ({"ALLPASS_URL": "http://x", "ALLPASS_NODE_TOKEN": "t", "ALLPASS_AGENT_USER_UID": "0"}, "unprivileged"),
    ],
)
def test_an_agent_that_is_not_configured_says_what_is_missing(zipapp: Path, environ: dict[str, str], said: str) -> None:
    """Exit code 2 and a sentence that names the variable."""
    done = subprocess.run(
        [sys.executable, str(zipapp)], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
