"""What all runs of this agent share, and the facts about the machine that the server is told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

from workers.agent.api import Api
from workers.agent.config import Config
from workers.agent.contents import Contents
from workers.agent.gpu_watch import GpuWatch
from workers.agent.gpus import Gpus
from workers.agent.models import Models
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
    contents: Contents
    models: Models
    users: Users
    gpus: GpuWatch


def facts(gpus: Gpus) -> Dict[str, Any]:
    """Python, CPUs, memory and GPUs. Asked once; the clock is added to each report."""
    system = os.uname()
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "system": f"{system.sysname} {system.release} {system.machine}",
        "cpus": _cpus(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        **gpus.facts(),
        "reads": ["listing"],  # what this agent understands that those of older releases do not
    }


def with_news(known: Dict[str, Any], users: Users, *, draining: bool, gpu_fault: Optional[str]) -> Dict[str, Any]:
    """`known` as of now. `draining`: the machine takes no new run: it is being taken away, or has a `fault`; where that
    is of its GPUs, nothing runs on there (`gpu_fault`). `notices`: what is to be known of it, once."""
    told = {**known, "clock_ms": time.time_ns() // 1_000_000, "draining": draining or users.fault is not None}
    if users.fault is not None:
        told["fault"] = users.fault
    if gpu_fault is not None:
        told["gpu_fault"] = gpu_fault
    if users.notices:
        told["notices"] = users.notices
    return told


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
