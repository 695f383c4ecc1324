"""An emulated pod as RunPod shows it, from what the estate knows of the machine.

Facts of a machine: `order` (image, gpu, cloud, disk, ...), `shown` (a status that hides the real one; LOST: it is in no
listing), `deleted` once that was asked for.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from providers.emulators.rows import MachineRow, MachineState
from providers.emulators.runpod.goods import disk_micros_per_hour

LOST, ERROR = "LOST", "ERROR"
_ACTIONS = {
    "PROVISIONING": ["stop", "terminate"],
    "STARTING": ["stop", "terminate"],
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["terminate"],
    "TERMINATED": [],
}


def status_of(machine: MachineRow, now_ms: int) -> str:
    """RunPod's word for it."""
    shown = machine.facts.get("shown")
    if machine.facts.get("deleted") or machine.state is MachineState.ENDED:
        return "TERMINATED"
    if shown == ERROR:
        return ERROR
    if machine.state is MachineState.BOOTING:
        half_ms = None if machine.boot_at_ms is None else (machine.created_ms + machine.boot_at_ms) // 2
        return "STARTING" if half_ms is not None and now_ms >= half_ms else "PROVISIONING"
    return "RUNNING" if machine.state is MachineState.RUNNING else "EXITED"


def is_shown(machine: MachineRow) -> bool:
    """Whether a listing has it."""
    return machine.is_live and not machine.facts.get("deleted") and machine.facts.get("shown") != LOST


def pod_json(machine: MachineRow, now_ms: int) -> dict[str, Any]:
    """The `Pod` object. Times are whole seconds."""
    order, status = machine.facts["order"], status_of(machine, now_ms)
    costs = status in {"PROVISIONING", "STARTING", "RUNNING"}
    cost_micros = machine.price_micros_per_hour - disk_micros_per_hour(order["disk"])
    return {
        "id": machine.ref,
        "name": order["name"],
        "status": status,
        "actions": _ACTIONS[status],
        "image": order["image"],
        "args": order["args"],
        "disk": order["disk"],
        "mounts": {},
        "ports": [],
        "env": order["env"],
        "registry": None,
        "gpu": order["gpu"],
        "cloud": order["cloud"],
        "dataCenterId": order["data_center"],
        "cudaVersion": "13.0",
        "ssh": {"proxy": None, "direct": None},
        "template": None,
        "cost": cost_micros / 1_000_000 if costs else 0.0,
        "locked": False,
        "globalNetworking": {"enabled": False},
        "runtime": {"uptime": max(0, now_ms - (machine.ready_ms or now_ms)) // 1000} if status == "RUNNING" else None,
        "createdAt": _instant(machine.created_ms),
        "startedAt": None if machine.ready_ms is None else _instant(machine.ready_ms),
    }


def _instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
