"""The body of a create call, checked against Vast.ai's limits before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from app.core.images.reference import parse_image
from app.errors import InvalidRequest
from app.ports.provider import MachineRequest
from providers.vast.options import VastOptions

Bootstrap = Callable[[MachineRequest], str]

LONGEST_SCRIPT_BYTES = 4096
LONGEST_VALUE_BYTES = 256
LONGEST_ENV_BYTES = 32_768
LONGEST_LABEL = 256
LONGEST_IMAGE = 1024
LEAST_DISK_GB = 8
_SHELL = "/bin/sh"


def create_body(request: MachineRequest, script: str, options: VastOptions, bid: Decimal | None) -> dict[str, Any]:
    """What to PUT for this request. Raises InvalidRequest naming the field that Vast.ai would not take.

    The runtype is `args`: the script is the container's own command. So the container is over, and its GPU no longer
    paid for, as soon as the agent ends; no SSH server is installed (which takes a minute) or reachable on somebody
    else's host; and when the container is started again, the script runs again. `onstart` is then the container's entry
    point and `args` are its arguments, so that an ENTRYPOINT of the image runs nothing in our place.

    `cancel_unavail` is sent for bids too: a create that cannot start at once must leave nothing behind.
    """
    args = ["-c", script]
    # Inside, Vast.ai gives a key that may end this contract and nothing else: for when we are gone for good.
    ends = f"{options.base_url.rstrip('/')}/api/v0/instances/{{CONTAINER_ID}}/ CONTAINER_API_KEY"
    env = {**dict(request.bootstrap), "ALLPASS_AGENT_ENDS": ends}
    _check(
        "args", sum(_size(each) for each in (_SHELL, *args)), LONGEST_SCRIPT_BYTES, "bytes with the bootstrap script"
    )
    for name, value in env.items():
        _check(f"env.{name}", _size(value), LONGEST_VALUE_BYTES, "bytes")
    _check("env", sum(_size(name) + _size(value) for name, value in env.items()), LONGEST_ENV_BYTES, "bytes in all")
    _check("label", len(request.label), LONGEST_LABEL, "characters")
    _check("image", len(request.image), LONGEST_IMAGE, "characters")
    if options.disk_gb < LEAST_DISK_GB:
        raise InvalidRequest(f"vast: disk is {options.disk_gb} GB; it must be at least {LEAST_DISK_GB}", param="disk")
    body = {
        "client_id": "me",
        "image": request.image,
        "env": env,
        "price": None if bid is None else float(bid),
        "disk": options.disk_gb,
        "label": request.label,
        "runtype": "args",
        "onstart": _SHELL,
        "args": args,
        "cancel_unavail": True,
        "target_state": "running",
    }
    login = options.logins.for_name(request.image)
    if login is not None:
        registry = parse_image(request.image).registry
        body["image_login"] = f"-u {login.user} -p {login.password} {registry}"
    return body


def _check(field: str, size: int, most: int, unit: str) -> None:
    if size > most:
        raise InvalidRequest(f"vast: {field} has {size} {unit}; at most {most} are taken", param=field)


def _size(text: str) -> int:
    return len(text.encode())
