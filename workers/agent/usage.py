"""What a run uses of its machine while it goes on: memory and processor time of its processes, and its GPUs.

For people who look at the job; nothing is decided by it. So nothing waits for it, nothing fails with it, and whatever
cannot be had is left out: a server of an older release, an nvidia-smi that hangs.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from workers.agent.api import Writer
from workers.agent.errors import AgentError, Unreachable
from workers.agent.gpus import ask_use
from workers.agent.machine import Machine
from workers.agent.process import Stoppable

FIRST_S = 2.0  # after the process has begun
EVERY_S = ((3600.0, 10.0), (12 * 3600.0, 30.0), (float("inf"), 120.0))  # until then, so often
LIMIT_S = 5.0  # for one answer of nvidia-smi
FAILS = 3  # answers in a row that do not come: then it is not asked again
MOST_UNSENT = 60  # while the server cannot be reached; the oldest go first
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Used(NamedTuple):
    """By a process: in clock ticks since its start, and in bytes now."""

    ticks: int
    memory_bytes: int


class UsageGauge:
    """Of one run, in a thread of its own, from the start of its process to its end."""

    def __init__(self, spec: Mapping[str, Any], writer: Writer, machine: Machine, gone: threading.Event) -> None:
        self._gpu_indices: Sequence[int] = spec.get("gpu_indices") or ()
        self._writer = writer
        self._machine = machine
        self._gone = gone
        self._unsent: List[Dict[str, Any]] = []
        self._failed = 0
        self._before: Dict[int, Used] = {}
        self._before_s = 0.0

    def tell(self, spec: Mapping[str, Any]) -> None:
        """The GPUs that it has may change while it goes on."""
        self._gpu_indices = spec.get("gpu_indices") or ()

    def environ(self) -> Dict[str, str]:
        return {}

    def begin(self, process: Stoppable) -> None:
        """From now on. A process that cannot be seen from here is not looked at."""
        if process.pid is not None:
            threading.Thread(target=self._work, args=(process.pid,), name="usage", daemon=True).start()

    def _work(self, guard: int) -> None:
        began_s = self._before_s = time.monotonic()
        pause_s = FIRST_S
        while not self._gone.wait(pause_s):
            found = below(guard)
            if found is None:
                return
            self._unsent = [*self._unsent, self._sample(found)][-MOST_UNSENT:]
            if not self._send():
                return
            pause_s = pause_after(time.monotonic() - began_s)

    def _sample(self, found: Dict[int, Used]) -> Dict[str, Any]:
        now_s = time.monotonic()
        ticks = sum(max(0, one.ticks - self._before.get(pid, Used(0, 0)).ticks) for pid, one in found.items())
        passed_s = max(0.001, now_s - self._before_s)
        self._before, self._before_s = found, now_s
        values = {
            "system/cpu_percent": round(100 * ticks / _TICK / passed_s, 1),
            "system/memory_bytes": float(sum(one.memory_bytes for one in found.values())),
            **self._gpus(),
        }
        return {"at_ms": time.time_ns() // 1_000_000, "values": values}

    def _gpus(self) -> Dict[str, float]:
        if not self._gpu_indices or self._failed >= FAILS:
            return {}
        told = ask_use(self._machine.config, LIMIT_S)
        self._failed = 0 if told else self._failed + 1
        values: Dict[str, float] = {}
        for index in self._gpu_indices:
            util, memory = told.get(index, (None, None))
            if util is not None:
                values[f"system/gpu{index}/util_percent"] = float(util)
            if memory is not None:
                values[f"system/gpu{index}/memory_bytes"] = float(memory)
        return values

    def _send(self) -> bool:
        """False when nobody wants any of it: the run is over for the server, or it knows nothing of this."""
        try:
            self._machine.api.system(self._writer, self._unsent)
        except Unreachable:
            return True
        except AgentError:
            return False
        self._unsent = []
        return True


def pause_after(passed_s: float) -> float:
    """Until the next look: a long run is looked at less often, so that its curve has some thousand points."""
    return next(every_s for until_s, every_s in EVERY_S if passed_s < until_s)


def below(guard: int) -> Optional[Dict[int, Used]]:
    """What each process below this one uses; None when it is gone itself."""
    parents: Dict[int, int] = {}
    used: Dict[int, Used] = {}
    for name in _listed():
        found = _read(int(name))
        if found is not None:
            parents[int(name)], used[int(name)] = found
    if guard not in parents:
        return None
    return {pid: one for pid, one in used.items() if _is_below(pid, guard, parents)}


def _is_below(pid: int, guard: int, parents: Mapping[int, int]) -> bool:
    seen = 0
    while pid in parents and seen < 1000:  # pids are used again while one looks: there may be a circle
        pid = parents[pid]
        seen += 1
        if pid == guard:
            return True
    return False


def _listed() -> List[str]:
    try:
        return [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    except OSError:
        return []


def _read(pid: int) -> "Optional[tuple[int, Used]]":
    """Its parent, and what it uses. A name may hold anything, a bracket as well."""
    try:
        cells = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(cells[1]), Used(int(cells[11]) + int(cells[12]), int(cells[21]) * _PAGE)
    except (OSError, ValueError, IndexError):
        return None
