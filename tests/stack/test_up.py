"""`allpass up` as a process: serves, survives what dies beside it, keeps its state, leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from allpass.client import Client
from allpass.wire.jobs import JobRequest
from app.stack.supervisor import free_port

pytestmark = pytest.mark.stack
ALLPASS = str(Path(sys.executable).parent / "allpass")
PLAIN_LOOP = Path(__file__).resolve().parents[2] / "examples" / "plain_loop.py"


def until(what: str, look: Callable[[], object], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline, f"waited {within_s:.0f} s for {what}"
        time.sleep(0.05)


def start(data_dir: Path, port: int) -> subprocess.Popen[bytes]:
    command = [ALLPASS, "up", "--port", str(port), "--data-dir", str(data_dir), "--speed", "0"]
    with data_dir.with_suffix(".said").open("ab") as said:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)


def client_of(data_dir: Path) -> Client | None:
    """A client, once the server answers."""
    file = data_dir / "client.json"
    if not file.exists():
        return None
    connection = json.loads(file.read_text())
    client = Client(connection["url"], connection["api_key"], retries=0)
    try:
        return client if client.health(ready=True).status == "ok" else None
    except Exception:
        return None


def processes_of(data_dir: Path) -> list[int]:
    """Every process with this data directory in its command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(data_dir).encode() in text:
                found.append(int(entry.name))
    return found


def test_state_survives_ctrl_c_and_nothing_is_left_running(tmp_path: Path) -> None:
    """Submit, Ctrl-C, start again with the same directory: the job is there, and so is the key."""
    data_dir, port = tmp_path / "data", free_port()
    first = start(data_dir, port)
    try:
        until("the first start", lambda: client_of(data_dir))
        key = json.loads((data_dir / "client.json").read_text())["api_key"]
        job_id = _run_to_the_end(data_dir)
        first.send_signal(signal.SIGINT)
        assert first.wait(30) == 0
        until("the end of every process", lambda: not processes_of(data_dir))
        second = start(data_dir, port)
        until("the second start", lambda: client_of(data_dir))
        assert json.loads((data_dir / "client.json").read_text())["api_key"] == key
        client = client_of(data_dir)
        assert client is not None
        assert client.get_job(job_id).status == "succeeded"
        assert "step" in "".join(page.text for page in client.log_pages(job_id))
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 0
    finally:
        for process in (first, locals().get("second")):
            if process is not None and process.poll() is None:
                process.kill()
    until("the end of every process", lambda: not processes_of(data_dir))


def test_a_killed_supervisor_takes_everything_with_it(tmp_path: Path) -> None:
    """SIGKILL of `allpass up`: PostgreSQL, store, cloud, machines and server end by themselves."""
    data_dir = tmp_path / "data"
    up = start(data_dir, 0)
    try:
        until("the start", lambda: client_of(data_dir))
        assert len(processes_of(data_dir)) > 3
    finally:
        up.kill()
        up.wait()
    until("the end of every process", lambda: not processes_of(data_dir))


def test_a_second_stack_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """Exit 1 with a sentence; the first one is not disturbed."""
    data_dir = tmp_path / "data"
    up = start(data_dir, 0)
    try:
        until("the start", lambda: client_of(data_dir))
        second = start(data_dir, 0)
        assert second.wait(60) == 1
        assert "in use by another Allpass" in data_dir.with_suffix(".said").read_text()
        assert client_of(data_dir) is not None
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(30)


def _run_to_the_end(data_dir: Path) -> str:
    import allpass as aps

    client = client_of(data_dir)
    assert client is not None
    app = aps.build(app_name="kept", user_name="ada", code=str(PLAIN_LOOP), client=client)
    request = JobRequest(app_id=app.id, parameters={"steps": 3, "step_ms": 1}, soft_deadline="1h")
    job = client.submit_job(request)
    return client.wait(job.id, timeout_s=60, poll_s=0.1).id
