"""An emulated cluster for the tests of its provider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from providers.kubernetes.adapter import KubernetesProvider
from tests.providers.cloud_process import processes_under
from tests.providers.kubernetes_cluster import EmulatedCluster


@pytest.fixture(scope="session")
def shared_cluster_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedCluster]:
    data_dir = tmp_path_factory.mktemp("kubernetes") / "emulator"
    cluster = EmulatedCluster.begin(data_dir)
    yield cluster
    assert cluster.stop() == 0
    cluster.kill()
    assert processes_under(data_dir) == []


@pytest.fixture
def cluster(shared_cluster_process: EmulatedCluster) -> Iterator[EmulatedCluster]:
    """An emulated cluster without delays: every test finds it without faults, switches, jobs and pods."""
    yield shared_cluster_process
    shared_cluster_process.clean_up()


@pytest.fixture
async def provider(cluster: EmulatedCluster) -> AsyncIterator[KubernetesProvider]:
    made = cluster.provider()
    yield made
    await made.close()
