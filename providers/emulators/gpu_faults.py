"""What can be made to go wrong with the GPUs of an emulated machine, the same at every company."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.emulators.admin import Action, Unfit
from providers.emulators.estate import Estate
from providers.emulators.faults import Fault, FaultKind

BAD_GPUS = "bad_gpus"  # the next machine has GPUs with this fault, one of `nvidia_smi.WRONGS`


def bad_gpus(op: str) -> FaultKind:
    """The kind of fault, for the operation that rents."""
    return FaultKind(ops=frozenset({op}), args={"wrong": str}, needed=frozenset({"wrong"}))


def wrong_of(fault: Fault | None) -> str:
    """What is wrong with the GPUs of the machine that this call rents; empty for nothing."""
    return str(fault.args["wrong"]) if fault is not None and fault.kind == BAD_GPUS else ""


def break_gpus(estate: Estate) -> Action:
    """For the admin port: /admin/machines/{ref}/gpus, {"wrong": "lost"}; empty for nothing."""

    async def act(ref: str, body: Mapping[str, Any]) -> None:
        try:
            estate.break_gpus(ref, str(body.get("wrong", "")))
        except ValueError as error:
            raise Unfit(str(error)) from error

    return act
