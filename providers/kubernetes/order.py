"""The Job of a machine, and the Secret that it alone reads."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from app.core.model.ids import is_id
from app.errors import InvalidRequest
from app.ports.provider import MachineRequest
from providers.kubernetes.options import KubeOptions, KubeShape

MANAGED, NODE, INSTALLATION, SHAPE = (
    "app.kubernetes.io/managed-by",
    "allpass/node",
    "allpass/installation",
    "allpass/shape",
)
OURS = f"{MANAGED}=allpass,{NODE}"
PRICE = "allpass/price-micros-per-hour"
QUEUE = "kueue.x-k8s.io/queue-name"
_SCRIPT = "ALLPASS_BOOTSTRAP"
_COMMAND = ["/bin/sh", "-c", f'eval "${_SCRIPT}"']  # the shell becomes the agent, which then hears the pod's SIGTERM
_MARK = slice(15, 20)  # the installation's characters in the id of a node

Bootstrap = Callable[[MachineRequest], str]


def job_name(label: str) -> str:
    """Of the machine of this node: always the same, so that nobody can create two. Raises InvalidRequest."""
    if not is_id(label, "node"):
        raise InvalidRequest(f"kubernetes: label {label!r} is no node's id, and names no job")
    return f"allpass-{label.removeprefix('node_').lower()}"


def labels_of(label: str, shape: KubeShape) -> dict[str, str]:
    """What tells that an object is ours, and whose machine it is."""
    return {MANAGED: "allpass", NODE: label, INSTALLATION: label[_MARK].lower(), SHAPE: shape.name}


def job_body(request: MachineRequest, shape: KubeShape, options: KubeOptions) -> dict[str, Any]:
    """What to POST. It begins suspended where its shape has a queue: Kueue lets it in."""
    name, labels = job_name(request.label), labels_of(request.label, shape)
    queued = {QUEUE: shape.queue} if shape.queue else {}
    lives_s = _lifetime_s(request, shape)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**labels, **queued},
            "annotations": {PRICE: str(request.offer.price_per_hour.micros)},
        },
        "spec": {
            "suspend": bool(shape.queue),
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": options.finished_s,
            **({} if lives_s is None else {"activeDeadlineSeconds": lives_s}),
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec(name, request, shape, options)},
        },
    }


def secret_body(request: MachineRequest, script: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """The machine's script, with its tokens. Owned by the job: whoever deletes that deletes this."""
    meta = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    labels = {name: value for name, value in meta["labels"].items() if name in {MANAGED, NODE, INSTALLATION, SHAPE}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": meta["name"], "labels": labels, "ownerReferences": [owner]},
        "type": "Opaque",
        "immutable": True,
        "data": {_SCRIPT: base64.b64encode(script.encode()).decode()},
    }


def _pod_spec(name: str, request: MachineRequest, shape: KubeShape, options: KubeOptions) -> dict[str, Any]:
    told: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": options.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": options.grace_s,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(name, request, shape, options)],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    if shape.node_selector:
        told["nodeSelector"] = dict(shape.node_selector)
    if shape.tolerations:
        told["tolerations"] = [each.body() for each in shape.tolerations]
    if shape.priority_class:
        told["priorityClassName"] = shape.priority_class
    if options.pull_secrets:
        told["imagePullSecrets"] = [{"name": each} for each in options.pull_secrets]
    return told


def _container(name: str, request: MachineRequest, shape: KubeShape, options: KubeOptions) -> dict[str, Any]:
    asked = {"cpu": str(shape.cpus), "memory": f"{shape.memory_gb}Gi", shape.gpu_resource: str(shape.gpu_count)}
    limits = {key: value for key, value in asked.items() if key != "cpu"}  # a limit of CPU only slows it down
    return {
        "name": "machine",
        "image": options.image or request.image,
        "command": _COMMAND,
        "env": [{"name": _SCRIPT, "valueFrom": {"secretKeyRef": {"name": name, "key": _SCRIPT}}}],
        "resources": {"requests": asked, "limits": limits},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - where loaders of data share memory
    }


def _lifetime_s(request: MachineRequest, shape: KubeShape) -> int | None:
    asked_s = None if request.lifetime_ms is None else max(1, request.lifetime_ms // 1000)
    return min((each for each in (asked_s, shape.lifetime_s) if each is not None), default=None)
