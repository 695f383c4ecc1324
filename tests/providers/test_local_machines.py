"""What runs on a machine of the local cloud, and that all of it ends."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from providers.local.market import LocalCatalogue, RentalClass
from tests.living import files_with, paths_below
from tests.providers.cloud_process import KEY, CloudProcess, agent_of, eventually, ok, processes_of, processes_under
from tests.sweeps import sample
from workers.agent import blocks
from workers.machines.processes import ProcessIdentity, is_alive, process_table, send_signal

StartCloud = Callable[..., CloudProcess]

# An agent that tries to leave things behind: a child in an own session, and a daemon (forked twice, own session) that
# has also dropped its environment. It prints their pids, and goes on when the daemon has become what it is: the end of
# the pipe that only it still holds then is closed by that.
ESCAPING_AGENT = """
exec "$ALLPASS_AGENT_PYTHON" -S -c '
import os, subprocess, sys, time
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(sleep, start_new_session=True).pid, flush=True)
daemon_is_there, held = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.execve(sleep[0], sleep, {})
    os._exit(0)
os.wait()
os.close(held)
os.read(daemon_is_there, 1)
if sys.argv[1:] == ["leave"]:
    sys.exit(3)
time.sleep(600)
'"""


def escaped(cloud: CloudProcess, machine_id: str) -> list[ProcessIdentity]:
    """The two processes that the escaping agent printed, once the daemon has shed its environment."""
    pids = eventually(lambda: (lines := cloud.log_of(machine_id).split())[3:] and [int(line) for line in lines[2:]])
    assert len(pids) == 2
    rows = {row.identity.pid: row.identity for row in process_table()}
    found = [rows[pid] for pid in pids if pid in rows]
    eventually(lambda: found[1:] == [] or found[1] not in processes_of(machine_id))
    return found


def test_terminate_leaves_nothing_of_the_tree(shared_cloud: CloudProcess) -> None:
    """Terminating a machine ends its agent, a child with an own session, and a daemon without our mark."""
    cloud = shared_cloud
    machine_id = cloud.rent(env={"AGENT": ESCAPING_AGENT})["id"]
    fugitives = escaped(cloud, machine_id)
    assert len(fugitives) == 2
    everything = [*fugitives, *processes_of(machine_id)]
    assert ok(cloud.api.delete(f"/v1/machines/{machine_id}"))["status"] == "ended"
    assert [identity for identity in everything if is_alive(identity)] == []


def test_an_agent_that_leaves_takes_its_machine_with_it(shared_cloud: CloudProcess) -> None:
    """When the agent exits by itself, the machine ends with its exit code and its leftovers are gone."""
    cloud = shared_cloud
    machine_id = cloud.rent(env={"AGENT": ESCAPING_AGENT + " leave"})["id"]
    ended = cloud.until(machine_id, "ended")
    assert ended["detail"] == "its agent exited with code 3"
    assert len(escaped(cloud, machine_id)) == 0


@pytest.mark.parametrize("victim", ["agent", "keeper"])
def test_kill_9_of_a_machine_ends_it_whole(shared_cloud: CloudProcess, victim: str) -> None:
    """SIGKILL of the agent, or even of the keeper above it, ends the machine with all that carries its mark."""
    cloud = shared_cloud
    machine_id = cloud.rent(env={"AGENT": ESCAPING_AGENT})["id"]
    in_own_session, _ = escaped(cloud, machine_id)
    agent = agent_of(machine_id)
    rows = {row.identity: row.parent_pid for row in process_table()}
    target = agent.pid if victim == "agent" else rows[agent]
    chosen = next(identity for identity in rows if identity.pid == target)
    assert send_signal(chosen, signal.SIGKILL)
    ended = cloud.until(machine_id, "ended")
    assert ended["detail"] == ("its agent was killed by signal 9" if victim == "agent" else "its processes disappeared")
    assert not is_alive(agent)
    assert not is_alive(in_own_session)
    assert processes_of(machine_id) == []
    if victim == "keeper":  # its daemon without a mark fell to init: end it for the next tests
        send_signal(escaped(cloud, machine_id)[-1], signal.SIGKILL)


def test_a_machine_can_be_ended_at_any_moment_of_its_start(
    shared_cloud: CloudProcess, shared_data_dir: Path, sweep: bool
) -> None:
    """Terminating right after the start, while the keeper is about to start the agent, leaves nothing behind. Five of
    13 moments are tried, with `--sweep` all."""
    for delay_ms in sample(range(0, 100, 8), every=1 if sweep else 3):
        machine_id = shared_cloud.rent()["id"]
        shared_cloud.until(machine_id, "running")
        time.sleep(delay_ms / 1000)  # not to wait for anything: to strike at another moment each time
        ok(shared_cloud.api.delete(f"/v1/machines/{machine_id}"))
        assert processes_of(machine_id) == []
    assert processes_under(shared_data_dir) == []


def test_machines_are_strangers_to_each_other(shared_cloud: CloudProcess) -> None:
    """Ending one machine leaves the others running."""
    cloud = shared_cloud
    first, second = cloud.rent()["id"], cloud.rent()["id"]
    cloud.until(second, "running")
    cloud.until(first, "running")
    ok(cloud.api.delete(f"/v1/machines/{first}"))
    assert cloud.machine(second)["status"] == "running"
    assert len(eventually(lambda: len(found := processes_of(second)) == 2 and found)) == 2


def test_a_machine_sees_its_bootstrap_and_none_of_the_hosts_secrets(
    shared_cloud: CloudProcess, shared_data_dir: Path
) -> None:
    """The agent gets the request's variables and the cloud's additions; not the cloud's key, nor other variables."""
    cloud = shared_cloud
    env = {
        "ALLPASS_URL": "http://127.0.0.1:1",
        "ALLPASS_NODE_TOKEN": "t0",
        "ALLPASS_AGENT_ROOT": "/else",
        "AGENT": "env",
    }
    machine_id = cloud.rent(env=env)["id"]
    cloud.until(machine_id, "ended")
    log = cloud.log_of(machine_id)
    seen = dict(line.split("=", 1) for line in log.splitlines() if "=" in line)
    folder = shared_data_dir / "machines" / machine_id
    assert seen["ALLPASS_URL"] == env["ALLPASS_URL"]
    assert seen["ALLPASS_NODE_TOKEN"] == "t0"
    assert seen["ALLPASS_MACHINE_ID"] == machine_id
    assert seen["ALLPASS_AGENT_ROOT"] == str(folder / "root")
    assert seen["ALLPASS_AGENT_CACHE"] == str(shared_data_dir / "cache")
    assert Path(seen["ALLPASS_AGENT_PYTHON"]).exists()
    assert KEY not in log
    assert "SECRET_OF_THE_HOST" not in seen


def test_the_token_is_private_and_soon_gone(shared_cloud: CloudProcess, shared_data_dir: Path) -> None:
    """A node token lies in an owner-only file until the machine boots, and in no file from then on."""
    cloud = shared_cloud
    ok(cloud.api.post("/admin/faults", json={"op": "create", "kind": "never_ready"}))
    booting = cloud.rent(env={"ALLPASS_NODE_TOKEN": "t-secret"})["id"]
    order = shared_data_dir / "machines" / booting / "order"
    assert "t-secret" in order.read_text()
    assert stat.S_IMODE(order.stat().st_mode) == 0o600
    ok(cloud.api.delete(f"/v1/machines/{booting}"))
    running = cloud.rent(env={"ALLPASS_NODE_TOKEN": "t-secret"})["id"]
    eventually(lambda: cloud.log_of(running))
    assert any(path.is_file() for path in paths_below(shared_data_dir))
    assert files_with("t-secret", shared_data_dir) == []


def test_the_disk_goes_with_the_machine(shared_cloud: CloudProcess, shared_data_dir: Path) -> None:
    """What a machine wrote is wiped at its end; its log stays."""
    cloud = shared_cloud
    machine_id = cloud.rent(env={"AGENT": "echo weights > model.bin; sleep 600"})["id"]
    root = shared_data_dir / "machines" / machine_id / "root"
    eventually((root / "model.bin").exists)
    ok(cloud.api.delete(f"/v1/machines/{machine_id}"))
    eventually(lambda: not root.exists())
    assert cloud.log_of(machine_id) == "up\nready\n"


def test_machines_run_user_code_as_different_users(shared_cloud: CloudProcess, shared_data_dir: Path) -> None:
    """Live machines get user ranges that do not overlap, and any user can pass through to the machine's disk."""
    first, second = (shared_cloud.rent(env={"AGENT": "env; echo told; sleep 600"})["id"] for _ in range(2))
    uids = []
    for machine_id in (first, second):
        log = eventually(lambda wanted=machine_id: "\ntold\n" in (log := shared_cloud.log_of(wanted)) and log)
        assert "SHARES_HOST=1" in log
        assert ("USER_UID=" in log) == (os.geteuid() == 0)
        uids.append(int(f"{log} ALLPASS_AGENT_USER_UID=0".split("ALLPASS_AGENT_USER_UID=")[1].split()[0]))
        folder = shared_data_dir / "machines" / machine_id
        for each in (shared_data_dir, folder.parent, folder, folder / "root"):
            assert stat.S_IMODE(each.stat().st_mode) == 0o711
    if os.geteuid() == 0:
        assert abs(uids[0] - uids[1]) >= blocks.SIZE
    assert stat.S_IMODE((shared_data_dir / "cloud.sqlite").stat().st_mode) == 0o600


def test_a_command_that_cannot_start_is_told_in_the_log(start_cloud: StartCloud) -> None:
    """A machine whose agent is not executable ends at once; its log names the command."""
    cloud = start_cloud(agent_command="/no/such/agent")
    machine_id = cloud.rent()["id"]
    assert cloud.until(machine_id, "ended")["detail"] == "its agent exited with code 127"
    assert "cannot start /no/such/agent" in cloud.log_of(machine_id)


def test_a_lifetime_ends_a_machine_by_itself(shared_cloud: CloudProcess) -> None:
    """A machine rented for a limited time is ended by the company, and not before that time."""
    cloud = shared_cloud
    machine_id = cloud.rent(lifetime_ms=600)["id"]
    ended = cloud.until(machine_id, "ended")
    assert ended["detail"] == "its lifetime is over"
    assert ended["ended_ms"] - ended["created_ms"] >= 600
    assert processes_of(machine_id) == []


def test_a_boot_takes_the_time_that_was_drawn_for_it(start_cloud: StartCloud, tmp_path: Path) -> None:
    """A machine is due after its own draw, scaled by the speed, and comes up not before; the draws follow the seed."""
    cloud = start_cloud(speed=0.05, seed=7)
    machines = [cloud.rent()["id"] for _ in range(3)]
    drawn_ms = [LocalCatalogue(7, 0.05).startup_ms(RentalClass.SERVERLESS, number) for number in (1, 2, 3)]
    # How late it then is, is the host's affair.
    with closing(sqlite3.connect(tmp_path / "cloud" / "cloud.sqlite")) as database:
        due = database.execute("SELECT boot_at_ms - created_ms FROM machines ORDER BY number").fetchall()
    assert due == [(drawn,) for drawn in drawn_ms]
    for machine_id, drawn in zip(machines, drawn_ms, strict=True):
        running = cloud.until(machine_id, "running")
        assert 0 < drawn <= running["ready_ms"] - running["created_ms"]


def test_only_ready_billing_waits_for_the_boot(start_cloud: StartCloud) -> None:
    """Serverless time counts from the request, the other classes' from the moment the machine is up."""
    cloud = start_cloud(speed=0.001)
    for offer_id, starts in (
        ("serverless-a100-x1", "created_ms"),
        ("marketplace-a100-x1-00", "ready_ms"),
        ("conventional-a100-x1", "ready_ms"),
    ):
        machine_id = cloud.rent(offer_id=offer_id)["id"]
        running = cloud.until(machine_id, "running")
        assert running["billed_from_ms"] == running[starts]
