"""A create call, checked as RunPod checks it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from providers.emulators.rows import MachineProgram
from providers.emulators.runpod.answers import conflicting, invalid
from providers.emulators.runpod.goods import COMMUNITY, DATA_CENTERS, SECURE, TYPES, GpuType

_FIELDS = frozenset(
    {
        "name", "image", "args", "disk", "env", "ports", "registry", "cloud", "cpu", "dataCenterIds",
        "globalNetworking", "gpu", "mounts", "startJupyter", "startSsh", "templateId",
    }
)  # fmt: skip
_GPU_FIELDS = frozenset({"id", "count", "allowedCudaVersions", "minCudaVersion", "minRamPerGpu", "minVcpuCountPerGpu"})
_VERSION = re.compile(r"^\d+\.\d+$")
_MOST_VARIABLES = 50
_USUAL_DISK_GB = 20
_IDLE = "exec sleep infinity"


@dataclass(frozen=True, slots=True)
class PodOrder:
    """A create call that is right in itself; whether there is room is another question."""

    name: str
    image: str
    args: str
    cloud: str
    gpu_type: GpuType
    gpu_count: int
    cuda: str | None
    ram_gb: int
    vcpus: int
    disk_gb: int
    env: dict[str, str]
    data_centers: tuple[str, ...]

    @property
    def program(self) -> MachineProgram:
        """The container's entry point runs its arguments; the text is taken apart as a shell would."""
        return MachineProgram(command=tuple(shlex.split(self.args))) if self.args else MachineProgram(script=_IDLE)


def read_order(body: Mapping[str, Any]) -> PodOrder:
    """Raises RunpodError for whatever RunPod refuses."""
    unknown = sorted(set(body) - _FIELDS)
    if unknown:
        raise invalid(unknown[0], "unexpected property")
    if ("gpu" in body) == ("cpu" in body):
        raise conflicting("exactly one of gpu or cpu must be set")
    if "cpu" in body or "templateId" in body or body.get("mounts"):
        raise conflicting("this is not played here: pods have GPUs, an image, and no volume")
    gpu = body["gpu"]
    if not isinstance(gpu, dict) or set(gpu) - _GPU_FIELDS:
        raise invalid("gpu", "unexpected property")
    gpu_type = TYPES.get(_text(gpu, "id"))
    if gpu_type is None:
        raise conflicting("gpu type not found")
    cloud = body.get("cloud", SECURE)
    if cloud not in {SECURE, COMMUNITY}:
        raise invalid("cloud", "must be SECURE or COMMUNITY")
    places = body.get("dataCenterIds") or list(DATA_CENTERS)
    if not isinstance(places, list) or not set(places) <= set(DATA_CENTERS):
        raise conflicting("data center not found")
    return PodOrder(
        name=_text(body, "name"),
        image=_text(body, "image"),
        args=_args(body.get("args", "")),
        cloud=str(cloud),
        gpu_type=gpu_type,
        gpu_count=_count(gpu, "count", 1),
        cuda=_cuda(gpu),
        ram_gb=_count(gpu, "minRamPerGpu", 1),
        vcpus=_count(gpu, "minVcpuCountPerGpu", 1),
        disk_gb=_count(body, "disk", _USUAL_DISK_GB),
        env=_environment(body.get("env", {})),
        data_centers=tuple(places),
    )


def _cuda(gpu: Mapping[str, Any]) -> str | None:
    least = gpu.get("minCudaVersion")
    if gpu.get("allowedCudaVersions") and least is not None:
        raise conflicting("allowedCudaVersions and minCudaVersion are mutually exclusive")
    if least is not None and (not isinstance(least, str) or not _VERSION.match(least)):
        raise invalid("gpu.minCudaVersion", "must match ^\\d+\\.\\d+$")
    return least


def _args(value: Any) -> str:
    if not isinstance(value, str):
        raise invalid("args", "must be a string")
    try:
        shlex.split(value)
    except ValueError as error:
        raise conflicting(f"args cannot be taken apart: {error}") from error
    return value


def _environment(env: Any) -> dict[str, str]:
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise invalid("env", "must be an object of strings")
    if len(env) > _MOST_VARIABLES:
        raise conflicting(f"at most {_MOST_VARIABLES} environment variables")
    return dict(env)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(name, "is required")
    return value


def _count(body: Mapping[str, Any], name: str, usual: int) -> int:
    value = body.get(name, usual)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise invalid(name, "must be an integer of at least 1")
    return value
