"""The emulated cluster is one for clients that know nothing of us: kubectl, and a library that is not the adapter's."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import kr8s
import pytest
from kr8s.asyncio.objects import Job, Pod

from providers.kubernetes.adapter import KubernetesProvider
from tests.providers.cloud_process import PATIENCE_S, eventually
from tests.providers.kubernetes.test_adapter import order
from tests.providers.kubernetes_cluster import EmulatedCluster

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed on this host")


@needs_kubectl
def test_kubectl_applies_reads_and_deletes(cluster: EmulatedCluster) -> None:
    """A job from a manifest, changed by another, its log, and its end."""
    body = cluster.job("mine", labels={"team": "a"})
    assert "job.batch/mine created" in cluster.kubectl("apply", "-f", "-", given=json.dumps(body))
    body["metadata"]["labels"]["team"] = "b"
    assert "configured" in cluster.kubectl("apply", "-f", "-", given=json.dumps(body))
    (job,) = json.loads(cluster.kubectl("get", "jobs", "-l", "team in (b, c)", "-o", "json"))["items"]
    assert job["metadata"]["labels"]["team"] == "b"
    cluster.uid_of("mine")
    eventually(lambda: "up" in cluster.kubectl("logs", "job/mine"))
    assert "AlreadyExists" in cluster.kubectl("create", "-f", "-", given=json.dumps(body), fails=True)
    assert "deleted" in cluster.kubectl("delete", "job", "mine", "--wait", "--cascade=foreground")
    assert "NotFound" in cluster.kubectl("get", "job", "mine", fails=True)
    assert cluster.items("pods") == []


@needs_kubectl
def test_kubectl_is_told_what_is_refused(cluster: EmulatedCluster) -> None:
    """By validation, by a quota, by a webhook, and where the token is wrong."""
    body = cluster.job("mine")
    body["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    assert "restartPolicy" in cluster.kubectl("create", "-f", "-", given=json.dumps(body), fails=True)
    quota: dict[str, Any] = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    quota["spec"] = {"hard": {"count/jobs.batch": "0"}}
    cluster.kubectl("apply", "-f", "-", given=json.dumps(quota))
    body = cluster.job("mine")
    assert "exceeded quota" in cluster.kubectl("create", "-f", "-", given=json.dumps(body), fails=True)
    cluster.kubectl("delete", "quota", "none")
    cluster.fault(op="create_jobs", kind="denied")
    assert "denied the request" in cluster.kubectl("create", "-f", "-", given=json.dumps(body), fails=True)


@needs_kubectl
def test_kubectl_watches(cluster: EmulatedCluster) -> None:
    """Each change of a pod, as it comes."""
    command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "get", "pods", "-w", "-o", "name"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        cluster.post("jobs", cluster.job("mine"))
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith("pod/mine-")
        cluster.uid_of("mine")
        cluster.kubectl("delete", "job", "mine")
        pods = {watching.stdout.readline() for _ in range(2)}
        assert all(line.startswith("pod/mine-") for line in pods)
    finally:
        watching.terminate()
        watching.wait(PATIENCE_S)
        if watching.stdout is not None:
            watching.stdout.close()


@needs_kubectl
async def test_kubectl_drains_a_node_with_one_of_our_machines(
    cluster: EmulatedCluster, provider: KubernetesProvider
) -> None:
    """The pod is evicted, the machine ends, and it is never made again elsewhere."""
    machine = await provider.create(await order(provider))
    cluster.uid_of(machine.ref)
    node = cluster.pod_of(machine.ref)["spec"]["nodeName"]
    assert f"node/{node} drained" in cluster.kubectl("drain", node, "--delete-emptydir-data", "--timeout=30s")
    assert cluster.items("pods") == []
    ended = await provider.get(machine.ref)
    assert ended is not None
    assert ended.status == "ended"
    cluster.kubectl("uncordon", node)


async def test_another_library_discovers_creates_and_follows(cluster: EmulatedCluster) -> None:
    """By its own discovery of the API, with its own watch."""
    api = await kr8s.asyncio.api(kubeconfig=str(cluster.kubeconfig))
    assert (await api.async_version())["minor"] == "32"
    job = await Job(cluster.job("mine"), api=api)
    await job.create()
    assert await job.exists()

    async def first() -> Any:
        async for kind, pod in api.async_watch("pods", namespace="allpass", label_selector="job-name=mine"):
            if pod.raw["status"]["phase"] == "Running":
                return kind, pod
        return None

    _, pod = await first()
    assert isinstance(pod, Pod)
    assert pod.raw["metadata"]["ownerReferences"][0]["uid"] == job.raw["metadata"]["uid"]
    await job.label({"seen": "yes"})
    found = [each async for each in api.async_get("jobs", namespace="allpass", label_selector={"seen": "yes"})]
    assert [each.name for each in found] == ["mine"]
    await job.delete(propagation_policy="Background")
    eventually(lambda: cluster.items("pods") == [] or None)
