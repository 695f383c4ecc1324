"""Fixtures of the provider tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.providers.cloud_process import CHOSEN_AGENT, CloudProcess, processes_under
from tests.providers.emulators.process import EmulatorProcess
from tests.providers.lambda_account import LambdaAccount
from tests.providers.runpod_account import RunpodAccount
from tests.slurm_cluster import SlurmCluster, slurm_cluster
from workers.machines.processes import send_signal

if TYPE_CHECKING:
    from tests.providers.modal_emulator import EmulatedModal
from tests.providers.vast_emulator import EmulatedVast

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


@pytest.fixture(scope="session")
def shared_modal_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedModal]:
    from tests.providers.modal_emulator import EmulatedModal  # Modal's client: only for those who need it

    folder = tmp_path_factory.mktemp("shared-modal") / "modal"
    emulator = EmulatedModal.start(folder)
    yield emulator
    assert emulator.terminate_process() == 0
    emulator.kill()
    assert processes_under(folder) == []


@pytest.fixture
def shared_modal(shared_modal_process: EmulatedModal) -> Iterator[EmulatedModal]:
    """An emulated Modal for tests that do not stop it: each finds it without faults, switches and live machines."""
    yield shared_modal_process
    shared_modal_process.clean_up()


@pytest.fixture(scope="session")
def shared_vast_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedVast]:
    data_dir = tmp_path_factory.mktemp("vast") / "emulator"
    vast = EmulatedVast.start(data_dir)
    yield vast
    assert vast.terminate_process() == 0
    vast.kill()
    assert processes_under(data_dir) == []


@pytest.fixture
def vast(shared_vast_process: EmulatedVast) -> Iterator[EmulatedVast]:
    """An emulated Vast.ai without delays: every test finds it without faults and live machines."""
    yield shared_vast_process
    shared_vast_process.clean_up()


@pytest.fixture(scope="session")
def shared_lambda_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    data_dir = tmp_path_factory.mktemp("lambda") / "emulator"
    emulator = EmulatorProcess.start("lambda", data_dir)
    yield emulator
    assert emulator.stop() == 0
    emulator.kill()
    assert processes_under(data_dir) == []


@pytest.fixture
def shared_lambda(shared_lambda_process: EmulatorProcess) -> Iterator[EmulatorProcess]:
    """An emulated Lambda without delays: every test finds it without faults, switches and live machines."""
    yield shared_lambda_process
    shared_lambda_process.clean_up()


@pytest.fixture(scope="session")
def shared_runpod_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    data_dir = tmp_path_factory.mktemp("runpod") / "emulator"
    emulator = EmulatorProcess.start("runpod", data_dir)
    yield emulator
    assert emulator.stop() == 0
    emulator.kill()
    assert processes_under(data_dir) == []


@pytest.fixture
def shared_runpod(shared_runpod_process: EmulatorProcess) -> Iterator[EmulatorProcess]:
    """An emulated RunPod without delays: every test finds it without faults, switches and live pods."""
    yield shared_runpod_process
    shared_runpod_process.clean_up()


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[SlurmCluster]:
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def slurm(shared_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """A real Slurm: every test finds it up, without faults and without jobs."""
    yield shared_slurm
    shared_slurm.clean_up()


@pytest.fixture
def runpod_account(shared_runpod: EmulatorProcess) -> Iterator[RunpodAccount]:
    account = RunpodAccount(shared_runpod)
    yield account
    account.close()


@pytest.fixture
def lambda_account(shared_lambda: EmulatorProcess) -> Iterator[LambdaAccount]:
    account = LambdaAccount(shared_lambda)
    yield account
    account.close()
