"""An emulated instance as Lambda shows it, from what the estate knows of the machine.

Facts of a machine: `order` (type, region, name, tags, ...), `terminated_ms` once termination was asked for,
`unhealthy_after_ms` from its being ready, `private_ip` (False: it never gets one).
"""

from __future__ import annotations

from typing import Any

from providers.emulators.lambda_cloud.goods import TYPES, region
from providers.emulators.rows import MachineRow, MachineState

TERMINATE_LINGERS_MS = 60_000  # how long `terminating` is shown; `terminated` for half of that
_NOT_LAUNCHED, _TERMINATING = "vm-has-not-launched", "vm-is-terminating"


def status_of(machine: MachineRow, now_ms: int) -> str:
    """Lambda's word for it. `terminated` once termination was carried out, however long ago."""
    if machine.facts.get("terminated_ms") is not None:
        return "terminated" if machine.state is MachineState.ENDED else "terminating"
    if machine.state is MachineState.BOOTING:
        return "booting"
    if machine.state is MachineState.RUNNING:
        return "unhealthy" if _is_unwell(machine, now_ms) else "active"
    return "terminated" if machine.state is MachineState.ENDED else "preempted"


def shown_status(machine: MachineRow, now_ms: int, speed: float) -> str | None:
    """The status as of now, with the time it lingers on its way out; None: it is not listed any more."""
    status = status_of(machine, now_ms)
    terminated_ms = machine.facts.get("terminated_ms")
    if status != "terminated" or machine.ended_ms is None:
        return status
    lingers_ms = TERMINATE_LINGERS_MS * speed
    since_ms = now_ms - (machine.ended_ms if terminated_ms is None else terminated_ms)
    if terminated_ms is not None and since_ms < lingers_ms:
        return "terminating"
    return "terminated" if since_ms < 1.5 * lingers_ms else None


def instance_json(machine: MachineRow, status: str, *, refuses_to_end: bool = False) -> dict[str, Any]:
    """The `Instance` object. What is not known yet is left out, as Lambda does."""
    order = machine.facts["order"]
    shown: dict[str, Any] = {
        "id": machine.ref,
        "status": status,
        "ssh_key_names": [order["ssh_key"]],
        "file_system_names": [],
        "region": region(order["region"]),
        "instance_type": TYPES[order["type"]].wire(),
        "tags": order["tags"],
        "actions": _actions(status, refuses_to_end=refuses_to_end),
    }
    if order.get("firewalls"):
        shown["firewall_rulesets"] = [{"id": ref} for ref in order["firewalls"]]
    for name in ("name", "hostname"):
        if order[name] is not None:
            shown[name] = order[name]
    if machine.ready_ms is not None and status != "booting":
        shown["ip"] = _address("192.0.2", machine.number)  # of a block that leads nowhere: nobody logs in
        shown["hostname"] = order["hostname"] or shown["ip"].replace(".", "-")
        shown["jupyter_token"] = machine.ref
        shown["jupyter_url"] = f"https://{shown['hostname']}.invalid/?token={machine.ref}"
        if machine.facts.get("private_ip", True):
            shown["private_ip"] = _address("10.19.60", machine.number)
    return shown


def _is_unwell(machine: MachineRow, now_ms: int) -> bool:
    after_ms = machine.facts.get("unhealthy_after_ms")
    return after_ms is not None and machine.ready_ms is not None and now_ms >= machine.ready_ms + int(after_ms)


def _actions(status: str, *, refuses_to_end: bool) -> dict[str, Any]:
    reason = {"booting": _NOT_LAUNCHED, "terminating": _TERMINATING, "terminated": _TERMINATING}.get(status)
    actions = {name: _action(reason) for name in ("migrate", "rebuild", "restart", "cold_reboot")}
    ends = reason is None or (reason == _NOT_LAUNCHED and not refuses_to_end)
    return {**actions, "terminate": _action(None if ends else reason)}


def _action(reason: str | None) -> dict[str, Any]:
    if reason is None:
        return {"available": True}
    words = "has not launched yet" if reason == _NOT_LAUNCHED else "is terminating"
    return {"available": False, "reason_code": reason, "reason_description": f"The instance {words}."}


def _address(block: str, number: int) -> str:
    return f"{block}.{number % 254 + 1}"
