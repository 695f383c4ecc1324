"""A user of a real Slurm of the test's own: our adapter for it."""

from __future__ import annotations

from typing import Any

from app.core.model.offer import Offer
from app.ports.pace import Pace
from app.ports.provider import MachineRequest
from providers.conformance.suite import new_label
from providers.slurm.adapter import SlurmProvider
from providers.slurm.options import SlurmOptions
from providers.slurm.shapes import SlurmShape
from tests.providers.cloud_process import WallClock
from tests.providers.lambda_account import NoWait
from tests.slurm_cluster import SlurmCluster


def shape(name: str = "a100", **given: Any) -> SlurmShape:
    fields = {"partition": "main", "gpu_type": "A100", "gpu_count": 1, "gpu_memory_gb": 80, "cpus": 2, "most": 4}
    return SlurmShape(name=name, **{**fields, "memory_gb": 1, "time_limit": "10", **given})


def adapter(
    cluster: SlurmCluster, *shapes: SlurmShape, conf: str = "", pace: Pace | None = None, **options: Any
) -> SlurmProvider:
    given = {
        "shapes": shapes or (shape(),),
        "commands": str(cluster.bin),
        "conf": conf or str(cluster.conf),
        "log_folder": str(cluster.logs),
        "scratch": str(cluster.scratch),
        "timeout_s": 5.0,
        "max_wait_ms": 3_600_000,  # a trial reckons with whatever waits at that moment, be it for less than a second
    }
    return SlurmProvider(SlurmOptions(**{**given, **options}), clock=WallClock(), pace=pace or NoWait())


def request(offer: Offer, **bootstrap: str) -> MachineRequest:
    """A machine that looks for an agent where nobody has one."""
    given = {"ALLPASS_URL": "http://127.0.0.1:9", "ALLPASS_AGENT_SHA256": "0" * 64, "ALLPASS_JOIN_TOKEN": "hidden"}
    return MachineRequest(new_label(), offer, offer.price_per_hour, "", tuple({**given, **bootstrap}.items()))


def job_of(ref: str) -> str:
    """The number that Slurm knows a machine by."""
    return ref.partition("-")[0]
