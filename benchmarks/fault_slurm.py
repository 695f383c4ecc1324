"""A real Slurm in the fault matrix: its commands fail as they are told to, its daemons and jobs are what they are."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import allpass
from allpass.errors import Conflict
from benchmarks.fault_books import Books
from providers.emulators.nvidia_smi import EmulatedGpus
from tests.ports import reserved_port
from tests.slurm_cluster import NODES, SlurmCluster

SLURM_GPU = "H20"  # which no company rents out here
_POOL, _USD_PER_HOUR = "h20", 0.40
_MICROS_PER_HOUR = round(_USD_PER_HOUR * 1_000_000)
_MEMORY_GB = 96
_TIMED_OUT = 'echo "error: Socket timed out on send/recv operation" >&2; exit 1\n'
_REAL = '{real} "$@" >/dev/null 2>&1\n'
# What the next call of a command does, by the words of a fault.
STRIKES: Mapping[str, str] = {
    "lost after": _REAL + "kill -9 $$\n",
    "error after": _REAL + _TIMED_OUT,
    "lost before": "kill -9 $$\n",
    "error before": _TIMED_OUT,
    "hangs": "exec sleep 60\n",
    "hangs after": _REAL + "exec sleep 60\n",
    "busy": 'echo "sbatch: error: Batch job submission failed: Requested nodes are busy" >&2; exit 1\n',
    "says nothing": "exit 0\n",
    "held": '{real} --hold "$@"; exit\n',
    "late": '{real} --begin=now+30minutes "$@"; exit\n',
}
_LIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"})


@contextmanager
def slurm_in(folder: Path) -> Iterator[SlurmCluster]:
    """Raises SlurmMissing where there can be none."""
    folder.mkdir(mode=0o755)
    with ExitStack() as held:
        cluster = SlurmCluster(folder, [held.enter_context(reserved_port()) for _ in range(1 + len(NODES))])
        held.callback(cluster.close)
        cluster.start()
        yield cluster


def slurm_settings(cluster: SlurmCluster) -> dict[str, str]:
    """A shape with a GPU that is played."""
    smi = cluster.folder / "nvidia-smi"
    smi.write_text(EmulatedGpus(SLURM_GPU, 1, _MEMORY_GB * 1024).script())
    smi.chmod(0o755)
    shape = {"name": _POOL, "partition": "main", "gpu_type": SLURM_GPU, "gpu_count": 1, "gpu_memory_gb": _MEMORY_GB}
    python = Path(sys.executable).parent
    return {
        "ALLPASS_SLURM_SHAPES": json.dumps([{**shape, "cpus": 1, "memory_gb": 1, "time_limit": "60", "most": 4}]),
        "ALLPASS_SLURM_BIN": str(cluster.bin),
        "ALLPASS_SLURM_CONF": str(cluster.conf),
        "ALLPASS_SLURM_SCRATCH": str(cluster.scratch),
        "ALLPASS_SLURM_LOG_DIR": str(cluster.logs),
        "ALLPASS_SLURM_SETUP": f"export PATH={python}:$PATH ALLPASS_AGENT_SHARES_HOST=1 ALLPASS_AGENT_NVIDIA_SMI={smi}",
        "ALLPASS_SLURM_MAX_WAIT_S": "60",
        "ALLPASS_SLURM_STARTUP_S": "2",
        "ALLPASS_SLURM_STARTUP_DEADLINE_S": "20",
        "ALLPASS_SLURM_CREATE_GRACE_S": "5",
        "ALLPASS_OPERATION_TIMEOUT_S": "12",
    }


def make_slurm_pool(client: allpass.Client) -> None:
    """So that its machines have a price in the ledger."""
    with suppress(Conflict):  # it is there
        client.create_pool(_POOL, launcher="slurm", price_usd=_USD_PER_HOUR)


class SlurmBooks(Books):
    """Faults are `{"op": COMMAND, "kind": one of STRIKES}`, each of the command's next call. Switches: `away` (the
    controller is stopped). Done to a machine: `kill` (its processes), `preempt` (somebody more urgent), `end`."""

    name = "slurm"

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self._is_away = False
        self._urgent = ""
        self._of_others: set[str] = set()  # jobs that are no machines

    async def settle_in(self) -> None:
        await asyncio.to_thread(self._settle_in)

    def _settle_in(self) -> None:
        if self._is_away:
            self._cluster.start_controller()
            self._is_away = False
        for armed in (self._cluster.folder / "faults").iterdir():
            armed.unlink()
        if self._urgent:
            self._cluster.call("scancel", self._urgent)
            self._urgent = ""

    async def fault(self, body: Mapping[str, Any]) -> None:
        await asyncio.to_thread(self._cluster.strike, body["op"], STRIKES[body["kind"]])

    async def switch(self, switches: Mapping[str, Any]) -> None:
        if switches.get("away"):
            self._is_away = True
            await asyncio.to_thread(self._cluster.stop, "slurmctld")

    async def act(self, ref: str, what: str, body: Mapping[str, Any]) -> None:
        number = ref.partition("-")[0]
        if what == "kill":
            for pid in self._cluster.processes(job_id=number):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif what == "preempt":
            words = ("--partition=urgent", f"--nodes={len(NODES)}", "--exclusive", "--time=30")
            self._urgent = await asyncio.to_thread(self._cluster.submit, *words)
            self._of_others.add(self._urgent)
        else:
            await asyncio.to_thread(self._cluster.call, "scancel", number)

    async def strikes_left(self) -> int:
        return sum(1 for armed in (self._cluster.folder / "faults").iterdir() if "." not in armed.name)

    async def machines(self) -> list[dict[str, Any]]:
        """What Slurm shows, which is all of the last minutes."""
        shown = await asyncio.to_thread(self._cluster.call, "scontrol", "show", "job", "-o")
        jobs = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in shown.splitlines()]
        return [_told(job) for job in jobs if job.get("JobId") and job["JobId"] not in self._of_others]

    async def orphan_micros(self, owned: set[str]) -> int:
        return sum(each["bill"]["amount_micros"] for each in await self.machines() if each["ref"] not in owned)

    async def close(self) -> None:
        """Whoever has started it ends it."""


def _told(job: Mapping[str, str]) -> dict[str, Any]:
    live = job["JobState"] in _LIVE
    return {
        "ref": f"{job['JobId']}-{job['JobName']}",
        "label": job["JobName"],
        "state": "running" if live else "ended",
        "created_ms": int(job["SubmitTime"]) * 1000,
        "ended_ms": None if live else int(job["EndTime"]) * 1000,
        "price_micros_per_hour": _MICROS_PER_HOUR,
        "storage_micros_per_hour": 0,
        "bill": {"amount_micros": _micros(job, live=live)},
    }


def _micros(job: Mapping[str, str], *, live: bool) -> int:
    if job["NodeList"] in {"(null)", ""} or not job["StartTime"].isdigit():
        return 0  # it never ran
    until_s = math.ceil(time.time()) if live else int(job["EndTime"])
    return round(max(0, until_s - int(job["StartTime"])) * _MICROS_PER_HOUR / 3600)
