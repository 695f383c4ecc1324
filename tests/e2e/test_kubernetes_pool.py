"""Jobs on a cluster of one's own, whose pods others may need more: a run goes on elsewhere, at the exact step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import allpass
from app.stack.supervisor import Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.service import EXAMPLES, Service, uninterrupted, until
from tests.e2e.test_moves import MOVES, SCRIPT
from tests.folders import open_to_all
from tests.providers.kubernetes_cluster import EmulatedCluster

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

STEPS = {"steps": 1_200, "step_ms": 40, "seed": 21}  # its steps take a while until it has moved, and no time after that
SHORT_LIVED_S = 20
_A100 = {"gpu_type": "A100", "gpu_memory_gb": 80, "cpus": 2, "memory_gb": 8}
SHAPES = [{"name": "a100", **_A100}, {"name": "short", **_A100, "gpu_count": 2, "lifetime_s": SHORT_LIVED_S}]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmulatedCluster]:
    with open_to_all() as folder:
        cluster = EmulatedCluster.begin(folder / "cluster")
        yield cluster
        cluster.clean_up()
        cluster.stop()
        cluster.kill()


@pytest.fixture(scope="module")
def hybrid(cluster: EmulatedCluster) -> Iterator[Service]:
    """A stack with a local cloud, whose jobs may use the cluster as well."""
    settings = {
        **MOVES,
        "ALLPASS_KUBERNETES_SHAPES": json.dumps(SHAPES),
        "ALLPASS_KUBERNETES_KUBECONFIG": str(cluster.kubeconfig),
        "ALLPASS_KUBERNETES_GRACE_S": "30",
        "ALLPASS_KUBERNETES_STARTUP_S": "1",
        "ALLPASS_KUBERNETES_STARTUP_DEADLINE_S": "60",
    }
    with open_to_all() as folder:
        stack = Stack(StackOptions(data_dir=folder / "data", port=0, cloud_speed=0.02, settings=settings), tell=print)
        stack.start()
        try:
            with client_of(stack.layout.client_file) as client:
                yield Service(stack, client)
        finally:
            stack.stop()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Losses and model of a run that nothing disturbed."""
    return uninterrupted(tmp_path_factory.mktemp("alone") / "run", "plain_loop.py", {**STEPS, "step_ms": 0})


@pytest.fixture(scope="module")
def app(hybrid: Service, tmp_path_factory: pytest.TempPathFactory) -> allpass.App:
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "plain_loop.py").write_bytes((EXAMPLES / "plain_loop.py").read_bytes())
    return allpass.build("cluster", "ada", code=folder, client=hybrid.client)


def pod_of(service: Service, cluster: EmulatedCluster, job: allpass.Job) -> str:
    """The uid of the pod on which the job trains, once it has taken some steps there."""
    service.wait_for(job, "its first steps", lambda info: info.status == "running" and (info.step or 0) > 30)
    place = job.info().where
    assert place is not None
    assert place.provider == "kubernetes"
    (row,) = service.rows(f"SELECT provider_ref FROM nodes WHERE id = '{place.node_id}'")
    return cluster.uid_of(row["provider_ref"])


def assert_exact(service: Service, job: allpass.Job, alone: Any, folder: Path) -> None:
    """One job; each step's loss and the model are those of the undisturbed run, and no step was taken twice."""
    info = service.wait_for_end(job)
    assert info.status == "succeeded", service.story(job)
    losses, model = alone
    assert {point.step: point.values["loss"] for point in job.metrics()} == losses
    job.download(folder / "result")
    assert (folder / "result" / "model.json").read_bytes() == model
    assert info.faults == 0, service.story(job)


def test_a_pod_that_is_evicted_in_mid_run_loses_no_step(
    hybrid: Service, cluster: EmulatedCluster, app: allpass.App, alone: Any, tmp_path: Path
) -> None:
    """The agent hears SIGTERM, the run saves within the grace, and goes on from that step on another machine."""
    job = app.run(template={"gpu": {"type": "A100"}}, parameters=STEPS, soft_deadline="6hr")
    uid = pod_of(hybrid, cluster, job)
    cluster.act(uid, "evict")
    assert_exact(hybrid, job, alone, tmp_path)
    assert len(job.timeline().stays) >= 2
    until("nothing of ours is left in the cluster", lambda: not cluster.items("jobs", "allpass/node"))
    assert cluster.items("secrets") == []


def test_a_machine_whose_lifetime_ends_is_left_in_time(
    hybrid: Service, cluster: EmulatedCluster, app: allpass.App, alone: Any, tmp_path: Path
) -> None:
    """The deadline of its Job is known from its start on: the run moves before the cluster ends the pod."""
    job = app.run(template={"gpu": {"type": "A100", "count": 2}}, parameters=STEPS, soft_deadline="6hr")
    pod_of(hybrid, cluster, job)
    (row,) = hybrid.rows(
        "SELECT ends_ms - requested_ms AS lives FROM nodes WHERE state = 'ready' AND provider = 'kubernetes'"
    )
    assert abs(row["lives"] - SHORT_LIVED_S * 1000) < 5_000
    assert_exact(hybrid, job, alone, tmp_path)
    assert len(job.timeline().stays) >= 2
