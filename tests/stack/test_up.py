"""`allpass up` as a process: serves, survives what dies beside it, keeps its state, leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import allpass as aps
from allpass.client import Client
from allpass.wire.jobs import JobRequest
from tests.stack.alone import alone
from tests.stack.up_process import ALLPASS, QUICK, Up, processes_of, until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]
PLAIN_LOOP = Path(__file__).resolve().parents[2] / "examples" / "plain_loop.py"


def test_state_survives_ctrl_c_and_nothing_is_left_running(tmp_path: Path) -> None:
    """Submit, Ctrl-C, start again with the same directory: the job is there, and so is the key."""
    with Up(tmp_path / "data") as up:
        client = up.start()
        key = json.loads((up.data_dir / "client.json").read_text())["api_key"]
        job_id = _run_to_the_end(client)
        assert up.stop(signal.SIGINT) == 0
        until("the end of every process", lambda: not processes_of(up.data_dir))
        client = up.start()
        assert json.loads((up.data_dir / "client.json").read_text())["api_key"] == key
        assert client.get_job(job_id).status == "succeeded"
        assert "step" in "".join(page.text for page in client.log_pages(job_id))
        assert up.stop(signal.SIGTERM) == 0


def test_no_account_of_the_shell_is_used(tmp_path: Path, repository_root: Path) -> None:
    """With keys of every company and of a bucket in the shell, and no network but a loopback, a job runs to its end: no
    company and no bucket is called. Emulated companies have keys of their own."""
    called, data, script = tmp_path / "called", tmp_path / "data", tmp_path / "script.sh"
    script.write_text(f"""
        {ALLPASS} up --providers emulated --speed 0 --port 0 --data-dir {data} & up=$!
        while kill -0 $up && ! [ -f {data}/client.json ]; do sleep 0.1; done
        timeout 120 {ALLPASS} run {PLAIN_LOOP} --follow; code=$?
        kill -TERM $up; wait $up; exit $code
    """)
    environ = {**os.environ, **QUICK, "PYTHONPATH": str(repository_root), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    done = subprocess.run(
        alone(called, "sh", str(script)), cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, called.read_bytes()) == (0, b""), done.stderr
    assert "ALLPASS_MODAL_TOKEN_ID" in done.stderr, "that it is not used is told"
    assert "1" * 22 not in done.stderr, "by its name alone"
    until("the end of every process", lambda: not processes_of(data))


def test_any_folder_finds_the_stack(tmp_path: Path) -> None:
    """`up` writes a context, which is the current one where there is none; it says so, and `ps` elsewhere works."""
    with Up(tmp_path / "data") as up:
        up.start()
        until("what it says", lambda: "commands in any folder find it" in up.said())
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}
        done = subprocess.run(
            [ALLPASS, "ps", "--json"],
            cwd=elsewhere,
            env={**environ, "XDG_CONFIG_HOME": str(up.config)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
        assert up.stop(signal.SIGINT) == 0


def test_a_killed_supervisor_takes_everything_with_it(tmp_path: Path) -> None:
    """SIGKILL of `allpass up`: PostgreSQL, store, cloud, machines and server end by themselves."""
    with Up(tmp_path / "data") as up:
        up.start()
        assert len(processes_of(up.data_dir)) > 3
        assert up.process is not None
        up.process.kill()
        up.process.wait()
        until("the end of every process", lambda: not processes_of(up.data_dir))


def test_a_second_stack_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """Exit 1 with a sentence; the first one is not disturbed."""
    with Up(tmp_path / "data") as up:
        up.start()
        first, second = up.process, up.begin()
        assert second.wait(60) == 1
        assert "in use by another Allpass" in up.said()
        up.process = first
        assert up.client() is not None
        assert up.stop(signal.SIGTERM) == 0


def test_it_goes_on_while_its_database_cannot_be_started_and_its_other_parts_die(tmp_path: Path) -> None:
    """PostgreSQL is killed and its data are out of reach; the store, the cloud and the server are killed as well. Each
    try is told in a line, and when the data are back all of it serves again."""
    with Up(tmp_path / "data") as up:
        client = up.start()
        job_id = _run_to_the_end(client)
        data, elsewhere = up.data_dir / "postgres" / "data", up.data_dir / "postgres" / "elsewhere"
        data.rename(elsewhere)
        for words in (f"-D\0{data}", "app.storage.server", "providers.local.cloud", "app.main"):
            os.kill(_child(up, words), signal.SIGKILL)
        until("word of the missing data", lambda: up.said().count("put them back") >= 2)
        for part in ("PostgreSQL", "objects", "cloud"):
            assert f"{part} is started again (it has ended: killed by signal 9" in up.said()
        up.waits(0.1)
        elsewhere.rename(data)
        client = until("a stack that serves again", up.client)
        assert client.get_job(job_id).status == "succeeded"
        _run_to_the_end(client)
        assert up.stop(signal.SIGTERM) == 0


def _child(up: Up, words: str) -> int:
    """The child of `up` with these words in its command line."""
    assert up.process is not None
    children = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text().split()
    (found,) = (int(pid) for pid in children if words.encode() in Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def _run_to_the_end(client: Client) -> str:
    app = aps.build(app_name="kept", user_name="ada", code=str(PLAIN_LOOP), client=client)
    request = JobRequest(app_id=app.id, parameters={"steps": 3, "step_ms": 1}, soft_deadline="1h")
    job = client.submit_job(request)
    return client.wait(job.id, timeout_s=60, poll_s=0.1).id
