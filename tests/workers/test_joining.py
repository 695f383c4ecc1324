"""How a machine becomes a node: one token, one machine, whatever is lost or started twice."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.living import files_with
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import JOIN_TOKEN, TOKEN, Fault, Plane
from workers.agent.identity import machine_nonce

Start = Callable[..., AgentProcess]
REFUSED = 3


@pytest.fixture
def start_machine(start_agent: Start) -> Start:
    """Starts agents that have a join token only, as on rented machines."""

    def start(root: Path | None = None) -> AgentProcess:
        return start_agent(root, ALLPASS_NODE_TOKEN="", ALLPASS_JOIN_TOKEN=JOIN_TOKEN)

    return start


def test_a_machine_joins_and_runs_what_it_is_given(plane: Plane, start_machine: Start) -> None:
    """The join token opens one door; behind it the node's token is used, and user code sees neither."""
    run = desired(plane, "import os; print(sorted(v for n, v in os.environ.items() if 'TOKEN' in n or 'JOIN' in n))")
    plane.want(run)
    agent = start_machine()
    assert plane.wait_exit(run.run_id).last_lines == "[]"
    nonce = agent.root / "nonce"
    assert plane.nonce == nonce.read_text()
    assert stat.S_IMODE(nonce.stat().st_mode) == 0o600
    kept = [file for file in files_with(TOKEN, agent.root) if "lib" not in file.parts]
    assert kept == [], "the node's token is nowhere on the disk"


def test_a_lost_reply_costs_nothing(plane: Plane, start_machine: Start) -> None:
    """The machine asks again with the same number, and is let in."""
    plane.join_replies_to_lose = 2
    start_machine()
    plane.wait(lambda: plane.syncs, "a sync")
    assert len(plane.joins) == 3
    assert len({join.nonce for join in plane.joins}) == 1


def test_an_agent_that_starts_again_on_its_disk_is_the_same_machine(plane: Plane, start_machine: Start) -> None:
    """Killed and started with the same environment, as after a reboot, it comes back as the same node."""
    first = start_machine()
    plane.wait(lambda: plane.syncs, "a sync")
    first.kill()
    with plane.changed:
        plane.syncs.clear()
    start_machine(first.root)
    plane.wait(lambda: plane.syncs, "a sync of the second")
    assert len({join.nonce for join in plane.joins}) == 1


def test_a_second_machine_with_the_same_token_ends_itself(plane: Plane, start_machine: Start) -> None:
    """It is refused, never syncs, and says so by its exit code."""
    start_machine()
    plane.wait(lambda: plane.syncs, "a sync of the first")
    second = start_machine()
    assert second.wait() == REFUSED
    assert len({join.nonce for join in plane.joins}) == 2
    assert plane.nonce == plane.joins[0].nonce


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_counts_no_longer_ends_the_agent(plane: Plane, start_machine: Start, status: int) -> None:
    """Nobody waits for such a machine."""
    plane.faults.append(Fault("/join", status, "unauthenticated"))
    assert start_machine().wait() == REFUSED
    assert plane.syncs == []


def test_a_server_that_is_not_there_yet_is_waited_for(plane: Plane, start_machine: Start) -> None:
    """Errors that mean "later", and answers that are none of ours, are no refusal."""
    plane.faults.append(Fault("/join", 503, times=1))
    plane.faults.append(Fault("/join", 0, times=1))
    plane.faults.append(Fault("/join", 200, times=1))
    start_machine()
    plane.wait(lambda: plane.syncs, "a sync")
    assert all(fault.times == 0 for fault in plane.faults)


def test_an_agent_that_was_never_let_in_leaves_when_asked(plane: Plane, start_machine: Start) -> None:
    """SIGTERM ends it while it waits for the server: nothing is left to save."""
    down = Fault("/join", 503)
    plane.faults.append(down)
    agent = start_machine()
    plane.wait(lambda: down.times < 1_000_000, "a first try")
    agent.terminate()
    assert agent.wait() == 0


def test_a_nonce_that_is_not_whole_is_made_anew(tmp_path: Path) -> None:
    """A disk that was full, or a crash, may have left half of it: nobody has seen that one."""
    made = machine_nonce(tmp_path)
    assert machine_nonce(tmp_path) == made
    (tmp_path / "nonce").write_text(made[:10])
    again = machine_nonce(tmp_path)
    assert len(again) == 64
    assert again != made
    assert machine_nonce(tmp_path) == again
    assert [file.name for file in tmp_path.iterdir()] == ["nonce"]
