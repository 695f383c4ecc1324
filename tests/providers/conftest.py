"""Fixtures of the provider tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from providers.local.processes import send_signal
from tests.providers.cloud_process import CHOSEN_AGENT, CloudProcess, processes_under

pytest.register_assert_rewrite("providers.conformance.suite")


@pytest.fixture
def start_cloud(tmp_path: Path) -> Iterator[Callable[..., CloudProcess]]:
    """Starts local clouds on one data directory; whatever they leave behind is ended."""
    clouds: list[CloudProcess] = []

    def start(**options: object) -> CloudProcess:
        clouds.append(CloudProcess.start(tmp_path / "cloud", **options))
        return clouds[-1]

    yield start
    for cloud in clouds:
        cloud.kill()
    for identity in processes_under(tmp_path):
        send_signal(identity, signal.SIGKILL)


@pytest.fixture(scope="session")
def shared_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "cloud"


@pytest.fixture(scope="session")
def shared_cloud_process(shared_data_dir: Path) -> Iterator[CloudProcess]:
    cloud = CloudProcess.start(shared_data_dir, agent_command=CHOSEN_AGENT)
    yield cloud
    assert cloud.terminate_process() == 0
    cloud.kill()
    assert processes_under(shared_data_dir) == []


@pytest.fixture
def shared_cloud(shared_cloud_process: CloudProcess) -> Iterator[CloudProcess]:
    """A cloud for tests that neither stop nor configure it: every test finds it without faults and live machines."""
    yield shared_cloud_process
    shared_cloud_process.clean_up()
