"""The body of a create call."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from app.errors import InvalidRequest, OfferGone
from app.ports.provider import MachineRequest
from providers.runpod.catalogue import cuda_version, split_offer_id
from providers.runpod.options import RunpodOptions

Bootstrap = Callable[[MachineRequest], str]

_LONGEST_NAME = 191
_MOST_VARIABLES = 50
_SCRIPT = "ALLPASS_BOOTSTRAP"
# `args` is one text that RunPod takes apart as a shell would: the script travels where nothing has to be quoted. The
# shell becomes what the script becomes, so that a signal for the container reaches the agent.
_ARGS = f"""/bin/sh -c 'eval "$(echo "${_SCRIPT}" | base64 -d)"'"""


def create_body(request: MachineRequest, script: str, options: RunpodOptions) -> dict[str, Any]:
    """What to POST for this request. Raises InvalidRequest naming the field that RunPod would not take.

    The script is the container's own command: the image must have no ENTRYPOINT, or one that runs its arguments.
    """
    wanted = split_offer_id(request.offer.offer_id)
    if wanted is None:
        raise OfferGone(f"runpod: there is no offer {request.offer.offer_id}")
    if not request.label or len(request.label) > _LONGEST_NAME:
        raise InvalidRequest(f"runpod: name has {len(request.label)} characters; 1 to {_LONGEST_NAME} are taken")
    cloud, count, gpu_id = wanted
    gpu: dict[str, Any] = {
        "id": gpu_id,
        "count": count,
        "minRamPerGpu": options.memory_gb,
        "minVcpuCountPerGpu": options.cpus,
    }
    if options.cuda:
        gpu["minCudaVersion"] = cuda_version(options)
    body = {
        "name": request.label,
        "image": request.image,
        "cloud": cloud,
        "gpu": gpu,
        "disk": options.disk_gb,
        "args": _ARGS,
        "env": _environment(request, script, options),
    }
    return {**body, "dataCenterIds": list(options.data_centers)} if options.data_centers else body


def _environment(request: MachineRequest, script: str, options: RunpodOptions) -> dict[str, str]:
    """Inside, RunPod gives a key for this pod, and its id: for when we are gone for good."""
    ends = f"{options.base_url.rstrip('/')}/v2/pods/{{RUNPOD_POD_ID}} RUNPOD_API_KEY"
    encoded = base64.b64encode(script.encode()).decode()
    env = {**dict(request.bootstrap), "ALLPASS_AGENT_ENDS": ends, _SCRIPT: encoded}
    if len(env) > _MOST_VARIABLES:
        raise InvalidRequest(f"runpod: env has {len(env)} variables; at most {_MOST_VARIABLES} are taken", param="env")
    return env
