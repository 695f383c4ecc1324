"""What tests of clients share."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tests.clients.environments import python_of

START_S = 120.0
ADDRESS = "http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, unused_port: int) -> Iterator[str]:
    """The address of a server of MLflow's."""
    folder = tmp_path_factory.mktemp("mlflow")
    address = ADDRESS.format(port=unused_port)
    command = [python_of("mlflow"), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(unused_port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/store.db", "--artifacts-destination", str(folder / "files")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--workers", "1"], stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + START_S
        while not _answers(address):
            assert time.monotonic() < end and process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(address: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{address}/health").status == 200)
    except OSError:
        return False
