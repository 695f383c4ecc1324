"""A create call as the emulated Vast.ai reads it, with the limits that it documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from providers.emulators.rows import MachineProgram, Then
from providers.emulators.vast.errors import RefusedAnswer

_LONGEST = {"image": 1024, "label": 256}
_LONGEST_SCRIPT = 4096
_LONGEST_VALUE, _LONGEST_ENV = 256, 32_768
_LEAST_DISK_GB = 8
_IDLE = ("sleep", "infinity")
_LEAST_BID, _HIGHEST_BID = Decimal("0.001"), Decimal(128)


@dataclass(frozen=True, slots=True)
class CreateOrder:
    """A create call that has been read. `bid_micros` None: on demand."""

    image: str
    label: str | None
    disk_gb: int
    bid_micros: int | None
    runtype: str
    args: tuple[str, ...]
    onstart: str | None
    env: dict[str, str]
    cancel_unavail: bool
    login: tuple[str, str] | None

    def program(self, entrypoint: tuple[str, ...]) -> MachineProgram:
        """What runs at each start of the container. `entrypoint` is the image's own: beside a server `onstart` is a
        script, without one it takes the entry point's place."""
        if has_server(self.runtype):
            return MachineProgram(script=self.onstart) if self.onstart else MachineProgram(command=_IDLE)
        entry = (self.onstart,) if self.onstart else entrypoint
        return MachineProgram(command=(*entry, *self.args) or _IDLE)

    @property
    def when_it_exits(self) -> Then:
        """A server goes on; without one the container is what it runs."""
        return Then.STAY if has_server(self.runtype) else Then.STOP


def has_server(runtype: str) -> bool:
    """Whether SSH or Jupyter takes the place of the image's entry point."""
    return "ssh" in runtype or "jupyter" in runtype


def read_order(body: Mapping[str, Any]) -> CreateOrder:
    """Raises Refused as the company does for what it does not take."""
    image = body.get("image")
    if not isinstance(image, str) or not image:
        raise _wrong("image is required")
    args = body.get("args") or []
    if not isinstance(args, list) or not all(isinstance(each, str) for each in args):
        raise _wrong("args must be a list of strings")
    onstart, label = body.get("onstart"), body.get("label")
    text = "".join(args) + str(body.get("args_str") or "") + str(onstart or "")
    if len(text) > _LONGEST_SCRIPT:
        raise _wrong(f"args, args_str and onstart are limited to {_LONGEST_SCRIPT} characters in total")
    for field, most in _LONGEST.items():
        if len(str(body.get(field) or "")) > most:
            raise _wrong(f"{field} is limited to {most} characters")
    bid = _bid(body.get("price"))
    return CreateOrder(
        image=image,
        label=None if label is None else str(label),
        disk_gb=_disk(body.get("disk", 10)),
        bid_micros=bid,
        runtype=str(body.get("runtype") or ("ssh_proxy" if onstart else "args")),
        args=tuple(args),
        onstart=str(onstart) if onstart else None,
        env=check_environment(body.get("env") or {}),
        # true for what is rented on demand and to run, unless somebody says otherwise
        cancel_unavail=bool(body.get("cancel_unavail", bid is None)),
        login=_login(body.get("image_login"), image),
    )


def _login(text: Any, image: str) -> tuple[str, str] | None:
    """`-u USER -p PASSWORD REGISTRY`, as of `docker login`: of use for images of that registry."""
    if not text:
        return None
    words = str(text).split(" ")
    if len(words) != 5 or (words[0], words[2]) != ("-u", "-p"):
        raise _wrong("image_login must be: -u USER -p PASSWORD REGISTRY")
    return (words[1], words[3]) if words[4] == image.partition("/")[0] else None


def check_environment(env: Any) -> dict[str, str]:
    """Variables as texts. Raises Refused for more than fits."""
    if not isinstance(env, dict):
        raise _wrong("env must be an object")
    values = {str(name): str(value) for name, value in env.items()}
    if any(len(value.encode()) > _LONGEST_VALUE for value in values.values()):
        raise _wrong(f"env values are limited to {_LONGEST_VALUE} bytes")
    if sum(len(name.encode()) + len(value.encode()) for name, value in values.items()) > _LONGEST_ENV:
        raise _wrong(f"env is limited to {_LONGEST_ENV} bytes")
    return values


def _disk(value: Any) -> int:
    try:
        disk_gb = int(float(value))
    except (TypeError, ValueError) as error:
        raise _wrong("disk must be a number") from error
    if disk_gb < _LEAST_DISK_GB:
        raise _wrong(f"disk must be at least {_LEAST_DISK_GB} GB")
    return disk_gb


def _bid(value: Any) -> int | None:
    if value is None:
        return None
    try:
        bid = Decimal(str(value))
    except InvalidOperation as error:
        raise RefusedAnswer(400, "invalid_price", f"price {value!r} is not a number") from error
    if not _LEAST_BID <= bid <= _HIGHEST_BID:
        raise RefusedAnswer(400, "invalid_price", f"price {bid} is not between {_LEAST_BID} and {_HIGHEST_BID}")
    return int(bid * 1_000_000)


def _wrong(message: str) -> RefusedAnswer:
    return RefusedAnswer(400, "invalid_args", f"error 400/3600: {message}")
