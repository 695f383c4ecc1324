"""The emulated cluster as tests use it: our adapter for it, and the bare API, as any other client has it."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx

from app.ports.provider import MachineRequest
from providers.kubernetes.adapter import KubernetesProvider
from providers.kubernetes.options import KubeOptions, KubeShape
from tests.providers.cloud_process import WallClock, eventually, ok
from tests.providers.emulators.process import KEY, EmulatorProcess

SCRIPT = "#!/bin/sh\necho up\necho ready\nexec sleep 600\n"
NAMESPACE = "allpass"
A100 = KubeShape(name="a100", gpu_type="A100", gpu_memory_gb=80, cpus=4, memory_gb=32)


def idle_script(_: MachineRequest) -> str:
    """Instead of our bootstrap."""
    return SCRIPT


def shape(**fields: Any) -> KubeShape:
    return KubeShape.model_validate({**A100.model_dump(), **fields})


class EmulatedCluster(EmulatorProcess):
    """`kubeconfig` is the file that leads there."""

    kubeconfig: Path

    @classmethod
    def begin(cls, data_dir: Path, **options: Any) -> EmulatedCluster:
        cluster = cls.start("kubernetes", data_dir, **options)
        assert isinstance(cluster, cls)
        cluster.kubeconfig = data_dir / "kubeconfig"
        trust = ssl.create_default_context(cafile=data_dir / "tls.crt")
        headers = {"Authorization": f"Bearer {KEY}"}
        cluster.http = httpx.Client(base_url=cluster.url, headers=headers, verify=trust, trust_env=False, timeout=30)
        return cluster

    http: httpx.Client

    def provider(self, *shapes: KubeShape, kubeconfig: Path | None = None, **options: Any) -> KubernetesProvider:
        given = {"timeout_s": 10.0, "grace_s": 5, "namespace": NAMESPACE, **options}
        way = str(kubeconfig or self.kubeconfig)
        made = KubeOptions(shapes or (A100,), way, **given)
        return KubernetesProvider(made, clock=WallClock(), bootstrap=idle_script)

    def variant(self, path: Path, was: str, now: str) -> Path:
        """Another kubeconfig, with this text in place of that."""
        path.write_text(self.kubeconfig.read_text().replace(was, now))
        return path

    def place(self, plural: str, name: str = "") -> str:
        base = "/apis/batch/v1" if plural == "jobs" else "/api/v1"
        path = f"{base}/namespaces/{NAMESPACE}/{plural}"
        return f"{path}/{name}" if name else path

    def post(self, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self.http.post(self.place(plural), json=body)
        assert response.status_code == 201, response.text
        return dict(response.json())

    def items(self, plural: str, selector: str = "") -> list[dict[str, Any]]:
        return list(ok(self.http.get(self.place(plural), params={"labelSelector": selector}))["items"])

    def item(self, plural: str, name: str) -> dict[str, Any] | None:
        response = self.http.get(self.place(plural, name))
        return None if response.status_code == 404 else dict(ok(response))

    def pod_of(self, ref: str) -> dict[str, Any]:
        """The pod of a job, once there is one."""
        return eventually(lambda: next(iter(self.items("pods", f"job-name={ref}")), None))

    def uid_of(self, ref: str) -> str:
        """What the emulator knows the machine by, once its process runs."""
        pod = eventually(lambda: (seen := self.pod_of(ref))["status"]["phase"] == "Running" and seen)
        return str(pod["metadata"]["uid"])

    def job(self, name: str = "somebody-elses", **fields: Any) -> dict[str, Any]:
        """A job of somebody else."""
        container = {"name": "main", "image": "busybox", "command": ["sh", "-c", "echo up; exec sleep 600"]}
        spec = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 2}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, **fields},
            "spec": {"backoffLimit": 0, "template": {"spec": spec}},
        }

    def kubectl(self, *words: str, given: str = "", fails: bool = False) -> str:
        """What it writes; an error of it is one of the test, but where it is to fail."""
        cache = self.kubeconfig.parent / "kubectl-cache"
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), "--cache-dir", str(cache), *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def clean_up(self) -> None:
        """As it was, but for what it remembers of pods."""
        for path in ("/admin/faults", "/admin/switches"):
            ok(self.admin.delete(path))
        self.http.get(self.place("secrets"))  # the crowd has left
        for plural in ("jobs", "pods", "secrets", "resourcequotas"):
            for found in self.items(plural):
                body = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
                self.http.request("DELETE", self.place(plural, found["metadata"]["name"]), json=body)
        self.nodes_are_back()
        for machine in self.machines():
            if machine["state"] != "ended":
                self.act(machine["ref"], "end")

    def nodes_are_back(self) -> None:
        """Heard of, and open to all."""
        for name in ("gpu-1", "gpu-2"):
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            patch = {"spec": {"unschedulable": None, "taints": None}, "status": {"conditions": [ready]}}
            headers = {"Content-Type": "application/merge-patch+json"}
            ok(self.http.patch(f"/api/v1/nodes/{name}", json={"spec": patch["spec"]}, headers=headers))
            ok(self.http.patch(f"/api/v1/nodes/{name}/status", json={"status": patch["status"]}, headers=headers))

    def kill(self) -> None:
        self.http.close()
        super().kill()
