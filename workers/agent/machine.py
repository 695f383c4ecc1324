"""What all runs of this agent share, and the facts about the machine that the server is told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, NamedTuple

from workers.agent.api import Api
from workers.agent.config import Config
from workers.agent.contents import ContentCache
from workers.agent.first_calculation import FirstCalculation
from workers.agent.gpu_watch import GpuWatch
from workers.agent.gpus import Gpus
from workers.agent.models import Models
from workers.agent.probe import Probe
from workers.agent.shipped import Shipped
from workers.agent.transport import Transport
from workers.agent.users import Users


class Machine(NamedTuple):
    """`guard`, `check`, `warm` and `hub_ahead` are programs that the agent wrote out."""

    config: Config
    api: Api
    transport: Transport
    guard: Path
    check: Path
    warm: Path
    hub_ahead: Path
    contents: ContentCache
    models: Models
    users: Users
    gpus: GpuWatch
    shipped: Shipped
    calculation: FirstCalculation
    probe: Probe


def facts(gpus: Gpus, config: Config) -> Dict[str, Any]:
    """Python, CPUs, memory, GPUs, and its own disk. Asked once; the clock is added to each report."""
    system = os.uname()
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "system": f"{system.sysname} {system.release} {system.machine}",
        "cpus": _cpus(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        **({} if config.shares_host else _disk(config.root)),
        **gpus.facts(),
        "reads": ["listing", "gang", "parts"],  # what this agent understands that those of older releases do not
    }


def with_news(machine: Machine, known: Dict[str, Any], *, draining: bool) -> Dict[str, Any]:
    """`known` as of now, with what was found out since. `draining`: the machine takes no new run: it is being taken
    away, or has a `fault`; where that is of its GPUs, nothing runs on there (`gpu_fault`). `notices`: what is to be
    known of it, once."""
    users, gpu_fault = machine.users, machine.gpus.lost
    found = {**machine.calculation.facts(), **machine.probe.facts()}
    told = {**known, **found, "clock_ms": time.time_ns() // 1_000_000, "draining": draining or users.fault is not None}
    if users.fault is not None:
        told["fault"] = users.fault
    if gpu_fault is not None:
        told["gpu_fault"] = gpu_fault
    if users.notices:
        told["notices"] = users.notices
    return told


def _disk(root: Path) -> Dict[str, Any]:
    try:
        disk = os.statvfs(root)
    except OSError:
        return {}
    free, whole = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    return {"disk": {"free_bytes": free, "total_bytes": whole}}


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
