"""Hosts that are reached over ssh: real sshds in network namespaces, which join, do a job and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import allpass
from app.stack.supervisor import Clouds, Stack, StackOptions
from benchmarks.pair import PAIR, sums_of
from tests.e2e.conftest import SETTINGS, client_of
from tests.e2e.pair import process_of
from tests.e2e.service import EXAMPLES, Service, until
from tests.e2e.ssh_namespace import MISSING, private_network, ssh_host
from tests.folders import open_to_all

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(300),
    pytest.mark.skipif(MISSING is not None, reason=f"needs {MISSING}"),
]


@pytest.fixture
def bare() -> Iterator[Service]:
    """A stack that has no machine at all."""
    with open_to_all() as folder:
        options = StackOptions(data_dir=folder / "data", port=0, clouds=Clouds.NONE, settings=SETTINGS)
        stack = Stack(options, tell=print)
        stack.start()
        try:
            with client_of(stack.layout.client_file) as client:
                yield Service(stack, client)
        finally:
            stack.stop()


def cli(client: allpass.Client, key: str, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "ALLPASS_URL": client.url, "ALLPASS_API_KEY": key}
    argv = [sys.executable, "-m", "allpass", *words]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_hosts_join_work_and_leave_over_ssh(bare: Service, tmp_path: Path) -> None:
    """Two at once, of which one cannot be reached; the job that waits runs on the other; nothing stays behind."""
    client = bare.client
    key = json.loads(bare.stack.layout.client_file.read_text())["api_key"]
    app = allpass.build("waits", "ada", code=EXAMPLES / "three_lines.py", client=client)
    job = app.run(template={"gpu": {"type": "CPU"}}, parameters={"steps": 20}, soft_deadline="6hr")
    assert cli(client, key, "pool", "create", "lab").returncode == 0
    ports = [bare.stack.children[name].port for name in ("server", "objects")]
    with open_to_all() as folder, ssh_host(folder, 1, ports) as (host, ssh):
        root = folder / "root of the host"  # a name with spaces
        words = ["--ssh", ssh + " -o ConnectTimeout=3", "--cpu", "--root", str(root)]
        done = cli(client, key, "pool", "add-ssh", "lab", host, "root@10.213.1.3", *words)
        assert done.returncode == 1, "one could not be reached"
        assert f"{host}: joined pool lab as host_" in done.stdout, done.stdout + done.stderr
        assert "root@10.213.1.3: " in done.stderr
        assert "apj_" not in done.stdout + done.stderr
        info = job.wait(timeout=90, poll_s=0.2)
        assert (info.status, [stay.tier for stay in job.timeline().stays]) == ("succeeded", ["own"]), bare.story(job)
        until("its processor is free", lambda: not any(one.used for one in client.pool("lab").hosts))
        gone = cli(client, key, "pool", "remove-ssh", host, "--ssh", ssh, "--root", str(root))
        assert gone.returncode == 0, gone.stdout + gone.stderr
        assert not root.exists()
        assert client.pool("lab").hosts == []
        again = cli(client, key, "pool", "remove-ssh", host, "--ssh", ssh, "--root", str(root))
        assert (again.returncode, "no host of a pool works in" in again.stderr) == (1, True)


def test_a_job_on_two_hosts_meets_on_their_own_network(bare: Service, tmp_path: Path) -> None:
    """Each reaches the service by its own loopback, and the other one by a network between them alone. One of its
    processes is killed, and every number is that of a job that nobody has disturbed."""
    client = bare.client
    key = json.loads(bare.stack.layout.client_file.read_text())["api_key"]
    ports = [bare.stack.children[name].port for name in ("server", "objects")]
    (tmp_path / "pair.py").write_text(PAIR)
    app = allpass.build("two", "ada", code=tmp_path / "pair.py", client=client)
    template = {"nodes": 2, "gpu": {"type": "CPU"}, "checkpoint_interval_s": 1}
    assert cli(client, key, "pool", "create", "lab").returncode == 0
    with (
        open_to_all() as one,
        open_to_all() as two,
        ssh_host(one, 1, ports) as first,
        ssh_host(two, 2, ports) as second,
    ):
        for folder, (host, ssh) in ((one, first), (two, second)):
            words = ["--ssh", ssh, "--cpu", "--root", str(folder / "root")]
            done = cli(client, key, "pool", "add-ssh", "lab", host, *words)
            assert done.returncode == 0, done.stdout + done.stderr
        with private_network(1, 2) as addresses:
            job = app.run(template=template, soft_deadline="6hr")
            assert isinstance(job, allpass.Job)
            bare.wait_for(job, "steps", lambda info: info.status == "running" and (info.step or 0) > 40)
            victim = process_of(job, 1)
            os.kill(victim, signal.SIGKILL)
            info = bare.wait_for_end(job)
            assert info.status == "succeeded", bare.story(job)
            log = list(job.logs())
            met = [line for line in log if "reaches machine 0 at" in line]
            assert met and all(any(f" {one}:" in line for one in addresses) for line in met), log
            assert sum("process 0 of 2 begins after step" in line for line in log) == 2, log
            assert {point.step: point.values["total"] for point in job.metrics()} == sums_of(200)
