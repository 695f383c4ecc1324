"""The cloud process and its machines come and go, in every order."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from providers.local.start import KEY_VARIABLE, cloud_command
from providers.local.store import _SCHEMA, Store
from tests.providers.cloud_process import (
    IDLE_AGENT,
    KEY,
    PATIENCE_S,
    CloudProcess,
    agent_of,
    eventually,
    processes_of,
)
from workers.machines.keeping import MachineEnd
from workers.machines.processes import identify, is_alive, kill_tree, send_signal

StartCloud = Callable[..., CloudProcess]
SURVIVE = {"machines_die_with_cloud": False}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The finished process of a cloud that is not going to stay."""
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def rent_running(cloud: CloudProcess, **fields: Any) -> str:
    """A machine whose agent is up; its id."""
    machine_id = str(cloud.rent(**fields)["id"])
    cloud.until(machine_id, "running")
    eventually(lambda: cloud.log_of(machine_id))
    return machine_id


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_machines_that_outlive_the_cloud_are_taken_up_again(start_cloud: StartCloud, how: int) -> None:
    """With machines that do not die with it, a restarted cloud finds the same processes and can still end them."""
    first = start_cloud(**SURVIVE)
    machine_id = rent_running(first, offer_id="conventional-a100-x1")
    before, agent = first.machine(machine_id), agent_of(machine_id)
    first.process.send_signal(how)
    first.process.wait(PATIENCE_S)
    assert is_alive(agent)

    second = start_cloud(**SURVIVE)
    after = second.machine(machine_id)
    assert after["status"] == "running"
    assert after["billed_from_ms"] == before["billed_from_ms"]
    assert is_alive(agent)
    second.api.delete(f"/v1/machines/{machine_id}").raise_for_status()
    assert processes_of(machine_id) == []
    assert second.machine(machine_id)["status"] == "ended"


def test_machines_die_with_a_killed_cloud(start_cloud: StartCloud) -> None:
    """By default a SIGKILLed cloud leaves no process behind, and its successor knows when each machine ended."""
    first = start_cloud()
    machine_id = rent_running(first)
    killed_ms = now_ms()
    first.kill()
    eventually(lambda: not processes_of(machine_id))
    gone_ms = now_ms()

    machine = start_cloud().machine(machine_id)
    assert machine["status"] == "ended"
    assert killed_ms <= machine["ended_ms"] <= gone_ms
    assert machine["billed_to_ms"] == machine["ended_ms"]
    assert machine["outage"] is True


def test_what_ends_on_a_machine_while_a_cloud_is_up_is_no_outage(start_cloud: StartCloud) -> None:
    """An agent that is killed, a machine that is ended: that is told apart from the end of the whole cloud."""
    cloud = start_cloud()
    machine_id = rent_running(cloud)
    send_signal(agent_of(machine_id), signal.SIGKILL)
    cloud.until(machine_id, "ended")
    assert cloud.machine(machine_id)["outage"] is False
    other = rent_running(cloud)
    cloud.api.delete(f"/v1/machines/{other}").raise_for_status()
    assert cloud.machine(other)["outage"] is False


def test_a_store_of_an_earlier_release_is_read_and_goes_on(tmp_path: Path) -> None:
    """It does not know of outages yet; what it holds is kept."""
    path = tmp_path / "cloud.sqlite"
    earlier = sqlite3.connect(path)
    earlier.executescript(_SCHEMA.replace("    outage INTEGER NOT NULL DEFAULT 0,\n", ""))
    earlier.execute(
        "INSERT INTO machines (machine_id, rental_class, offer_id, single, gpu_type, gpu_count, price_micros_per_hour,"
        " image, state, created_ms, slot) VALUES ('m-1', 'serverless', 'o', 0, 'T4', 1, 1, 'i', 'running', 1, 0)"
    )
    earlier.commit()
    earlier.close()
    for _ in range(2):
        store = Store(path)
        (machine,) = store.all()
        assert (machine.machine_id, machine.outage) == ("m-1", False)
        store.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_cloud_told_to_stop_ends_its_machines_first(start_cloud: StartCloud, how: int) -> None:
    """On SIGTERM or SIGINT the cloud ends booting and running machines, closes their bills, and exits with 0."""
    first = start_cloud()
    running = rent_running(first)
    first.api.post("/admin/faults", json={"op": "create", "kind": "never_ready"}).raise_for_status()
    booting = str(first.rent()["id"])
    first.process.send_signal(how)
    assert first.process.wait(PATIENCE_S) == 0
    assert processes_of(running) == []

    second = start_cloud()
    for machine_id in (running, booting):
        machine = second.machine(machine_id)
        assert (machine["status"], machine["detail"]) == ("ended", "the cloud was stopped")
        assert machine["outage"] is True
        assert second.bill_of(machine_id)["final"]


def test_the_cloud_dies_with_its_parent_and_takes_its_machines(tmp_path: Path) -> None:
    """When a supervisor that asked for it is SIGKILLed, the cloud and its machines are gone soon after."""
    supervisor = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from providers.local.start import cloud_command\n"
        "command = cloud_command(Path(sys.argv[1]), port=0, speed=0, agent_command=sys.argv[2])\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)\n"
        "print(child.pid, child.stdout.readline(), flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", supervisor, str(tmp_path / "cloud"), IDLE_AGENT],
        env={**os.environ, KEY_VARIABLE: KEY},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid, _, line = parent.stdout.readline().partition(" ")
        cloud = identify(int(pid))
        assert cloud is not None
        client = CloudProcess(parent, line.split('"')[-2])
        machine_id = rent_running(client)
        parent.kill()
    client.api.close()
    eventually(lambda: not is_alive(cloud))
    eventually(lambda: not processes_of(machine_id))


def test_a_cloud_whose_parent_is_another_one_leaves_at_once(tmp_path: Path) -> None:
    """A cloud told to die with a parent that has already gone does not stay."""
    command = [*cloud_command(tmp_path / "cloud", port=0, die_with_parent=False), "--die-with-parent", "1"]
    done = run(command, {**os.environ, KEY_VARIABLE: KEY})
    assert (done.returncode, done.stdout) == (0, "")


def test_a_machine_that_ended_while_no_cloud_was_up_has_its_true_end(start_cloud: StartCloud) -> None:
    """The end of a machine is known to the millisecond even if nobody was there to see it."""
    first = start_cloud(**SURVIVE)
    machine_id = rent_running(first)
    agent = agent_of(machine_id)
    first.kill()
    before_ms = now_ms()
    send_signal(agent, signal.SIGKILL)
    eventually(lambda: not processes_of(machine_id))
    after_ms = now_ms()

    machine = start_cloud(**SURVIVE).machine(machine_id)
    assert machine["status"] == "ended"
    assert before_ms <= machine["ended_ms"] <= after_ms
    assert machine["detail"] == "its agent was killed by signal 9"
    assert machine["outage"] is False


def test_a_machine_that_vanished_unseen_is_billed_until_it_was_last_seen(
    start_cloud: StartCloud, tmp_path: Path
) -> None:
    """When a machine and the cloud disappear together, as in a power cut, nobody pays for the dark hours."""
    first = start_cloud(**SURVIVE)
    machine_id = rent_running(first)
    first.kill()
    down_ms = now_ms()
    assert kill_tree(None, ("ALLPASS_MACHINE_ID", machine_id))
    for record in (tmp_path / "cloud").glob("machines/*/ended.json"):
        record.unlink()  # a power cut writes nothing

    machine = start_cloud(**SURVIVE).machine(machine_id)
    assert machine["status"] == "ended"
    assert machine["billed_from_ms"] <= machine["billed_to_ms"] <= down_ms
    assert machine["outage"] is True


def test_another_process_with_the_pid_of_a_machine_is_left_alone(start_cloud: StartCloud, tmp_path: Path) -> None:
    """A restarted cloud takes a pid for its machine only if the process also started when the machine's did."""
    first = start_cloud(**SURVIVE)
    machine_id = rent_running(first)
    first.kill()
    kill_tree(None, ("ALLPASS_MACHINE_ID", machine_id))
    with subprocess.Popen(["sleep", "60"]) as stranger:
        database = sqlite3.connect(tmp_path / "cloud" / "cloud.sqlite")
        database.execute("UPDATE machines SET keeper_pid = ?", [stranger.pid])
        database.commit()
        database.close()
        second = start_cloud(**SURVIVE)
        assert second.machine(machine_id)["status"] == "ended"
        second.api.delete(f"/v1/machines/{machine_id}").raise_for_status()
        assert stranger.poll() is None
        stranger.kill()


def test_a_booting_machine_boots_once_across_a_restart(start_cloud: StartCloud, tmp_path: Path) -> None:
    """A machine that was booting when the cloud was killed comes up under its successor when it is due, once."""
    first = start_cloud()
    fault = {"op": "create", "kind": "boot_slow_ms", "ms": 3_600_000}
    first.api.post("/admin/faults", json=fault).raise_for_status()
    machine_id = first.rent()["id"]
    first.kill()
    with sqlite3.connect(tmp_path / "cloud" / "cloud.sqlite") as database:
        due = database.execute("SELECT boot_at_ms - created_ms FROM machines").fetchone()
        database.execute("UPDATE machines SET boot_at_ms = ?", [now_ms()])  # an hour passes
    database.close()
    assert due == (3_600_000,)
    second = start_cloud()
    second.until(machine_id, "running")
    eventually(lambda: second.log_of(machine_id))
    assert len(processes_of(machine_id)) == 2  # keeper and agent


def test_two_clouds_never_share_a_data_directory(start_cloud: StartCloud, tmp_path: Path) -> None:
    """A second cloud on the same data directory refuses to start and says why."""
    start_cloud()
    command = cloud_command(tmp_path / "cloud", port=0, agent_command=IDLE_AGENT)
    second = run(command, {**os.environ, KEY_VARIABLE: KEY})
    assert second.returncode == 2
    assert "another local cloud runs on" in second.stderr


def test_a_cloud_without_a_key_refuses_to_start(tmp_path: Path) -> None:
    """There is no open mode: without a key the cloud names the variable that must hold it."""
    environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
    done = run(cloud_command(tmp_path / "cloud", port=0), environment)
    assert done.returncode == 2
    assert KEY_VARIABLE in done.stderr


def test_the_record_of_an_end_is_whole_or_absent_and_private(tmp_path: Path) -> None:
    """A machine's end reads back as it was written, to its owner alone, and as None before it was."""
    path = tmp_path / "ended.json"
    assert MachineEnd.read(path) is None
    MachineEnd(123, -9).write(path)
    assert MachineEnd.read(path) == MachineEnd(123, -9)
    assert [entry.name for entry in tmp_path.iterdir()] == ["ended.json"]
    assert path.stat().st_mode & 0o777 == 0o600
