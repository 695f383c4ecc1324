"""Contracts and charges as the emulated Vast.ai tells of them."""

from __future__ import annotations

from typing import Any

from providers.emulators.meter import BESIDE, line_of
from providers.emulators.rows import Cause, MachineRow, MachineState
from providers.emulators.serving import Grounds
from providers.emulators.vast.cards import ANCIENT_CUDA, ANCIENT_DRIVER
from providers.emulators.vast.hosts import MICROS_PER_USD, Host, hardware
from providers.emulators.vast.order import has_server

_MS_PER_HOUR = 3_600_000
_DAY_MS = 86_400_000
_BOOT_SHOWS_AFTER = 10  # the first tenth of a start has no status at all
_OWN = frozenset({Cause.PROGRAM, Cause.FAILURE})

# Filters of the listing work on what is stored, not on what is computed.
STORED = frozenset(
    {"actual_status", "intended_status", "cur_state", "gpu_name", "verification", "id", "label", "machine_id"}
    | {"host_id", "image_uuid", "start_date", "end_date", "geolocation"}
)


def instance(machine: MachineRow, host: Host, grounds: Grounds) -> dict[str, Any]:
    """The row of a contract that exists."""
    facts, now_ms = machine.facts, grounds.now_ms()
    base = machine.price_micros_per_hour / MICROS_PER_USD
    disk = machine.storage_micros_per_hour / MICROS_PER_USD
    running = machine.state is MachineState.RUNNING
    states = dict.fromkeys(("cur_state", "next_state", "intended_status"), "running")
    if machine.state is MachineState.STOPPED and machine.cause not in _OWN:
        states = dict.fromkeys(states, "stopped")
    row: dict[str, Any] = {
        **hardware(host),
        "id": int(machine.ref),
        "label": machine.label,
        "actual_status": _status(machine, now_ms),
        **states,
        "status_msg": facts["message"] or (None if machine.state is MachineState.BOOTING else machine.detail),
        "image_uuid": facts["image"],
        "image_runtype": facts["runtype"],
        "image_args": facts["args"],
        "onstart": facts["onstart"],
        "extra_env": [[name, value] for name, value in facts["env"].items()],
        "ssh_host": "ssh5.vast.ai",
        "ssh_port": 10_000 + machine.number,
        "local_ipaddrs": "172.17.0.2 \n",
        "ports": _ports(machine) if running else None,
        "direct_port_start": -1,
        "direct_port_end": -1,
        "gpu_util": 0.0 if running else None,
        "gpu_temp": 41.0 if running else None,
        "cpu_util": 0.0 if running else None,
        "disk_usage": 1.0 if running else None,
        "uptime_mins": None,
        "start_date": machine.created_ms / 1000,
        "end_date": None if machine.deadline_ms is None else machine.deadline_ms / 1000,
        "duration": None if machine.deadline_ms is None else (machine.deadline_ms - now_ms) / 1000,
        "is_bid": facts["bid_micros"] is not None,
        "min_bid": base,
        "dph_base": base,
        "dph_total": base + disk,
        "storage_total_cost": disk,
        "template_hash_id": None,
    }
    if facts["broken_gpu"]:
        row |= {"gpu_util": None, "gpu_temp": None, "ports": None}
        row |= {"cuda_max_good": ANCIENT_CUDA, "driver_version": ANCIENT_DRIVER}
    if host.odd and grounds.switches["odd_data"]:
        row["cpu_cores"] = None
    return row


def charge(machine: MachineRow, grounds: Grounds) -> dict[str, Any]:
    """What was charged for a contract. Until it is posted in full, half of it is."""
    now_ms = grounds.now_ms()
    line = line_of(machine, grounds.rule, now_ms)
    ended_ms = now_ms if machine.ended_ms is None else machine.ended_ms
    stored_ms = max(0, ended_ms - machine.created_ms)
    disk = stored_ms * machine.storage_micros_per_hour // _MS_PER_HOUR
    traffic = int(machine.facts.get(BESIDE, 0))
    lag_ms = grounds.switches["charges_lag_ms"]
    posted = line.amount_micros if lag_ms == 0 or now_ms - ended_ms >= lag_ms else line.amount_micros // 2
    gpu = line.amount_micros - disk - traffic
    return {
        "start": machine.created_ms // _DAY_MS * _DAY_MS // 1000,
        "end": (ended_ms // _DAY_MS + 1) * _DAY_MS // 1000,
        "type": "instance",
        "source": f"instance-{machine.ref}",
        "description": f"Instance {machine.ref} Charges",
        "amount": posted / MICROS_PER_USD,
        "metadata": {"label": machine.label},
        "items": [
            {
                "type": "gpu",
                "description": f"{line.billed_ms / _MS_PER_HOUR:.3f} hours",
                "amount": gpu / MICROS_PER_USD,
            },
            {"type": "disk", "description": f"{machine.facts['disk_gb']} GB", "amount": disk / MICROS_PER_USD},
            {"type": "bwd", "description": "traffic", "amount": traffic / MICROS_PER_USD},
        ],
    }


def _ports(machine: MachineRow) -> dict[str, Any] | None:
    """That of the SSH server, where one was asked for; nothing else is opened here."""
    if not has_server(machine.facts["runtype"]):
        return None
    return {"22/tcp": [{"HostIp": "::", "HostPort": str(33_000 + machine.number)}]}


def _status(machine: MachineRow, now_ms: int) -> str | None:
    facts = machine.facts
    if facts["shown"] is not None:
        return str(facts["shown"])
    if machine.state is MachineState.RUNNING:
        return "running"
    if machine.state is MachineState.STOPPED:
        return "exited" if machine.cause in _OWN else "stopped"
    if facts["boot_shown"] is not None:
        return str(facts["boot_shown"])
    boot_ms = 0 if machine.boot_at_ms is None else machine.boot_at_ms - machine.created_ms
    young = (now_ms - machine.created_ms) * _BOOT_SHOWS_AFTER < boot_ms
    return None if young else "loading"
