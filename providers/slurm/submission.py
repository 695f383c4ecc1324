"""What sbatch is told besides the script."""

from __future__ import annotations

from app.core.model.money import ZERO
from app.core.model.node import Tier
from app.core.model.offer import Offer
from providers.slurm.marks import SlurmMark
from providers.slurm.options import SlurmOptions
from providers.slurm.queue import NAME
from providers.slurm.shapes import SlurmShape

_MIB = 1024**2
_LEAST_LIFE_S = 600
_PART_FOR_NOTICE = 20  # of a short life, a small part: what is prepared elsewhere needs the rest of what is left


def resources(shape: SlurmShape) -> list[str]:
    """Where, with how much, for how long: the same for a trial and for a job."""
    asked = {
        "partition": shape.partition,
        "account": shape.account,
        "qos": shape.qos,
        "gres": shape.asked_gres,
        "constraint": shape.constraint,
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(shape.cpus),
        "mem": f"{shape.memory_bytes // _MIB}M",
        "time": shape.time_limit,
    }
    return [*(f"--{name}={value}" for name, value in asked.items() if value is not None), *shape.options]


def order(shape: SlurmShape, mark: SlurmMark, options: SlurmOptions, *, log: str) -> list[str]:
    """One job, which nobody but us begins again. Nothing of the service's environment goes with it."""
    return [
        "--parsable",
        "--no-requeue",
        "--export=NONE",
        "--chdir=/",
        "--input=/dev/null",
        f"--output={log}",
        "--open-mode=append",
        f"--job-name={mark.label}",
        f"--comment={mark.comment}",
        *_notice(shape, options),
        *resources(shape),
    ]


def _notice(shape: SlurmShape, options: SlurmOptions) -> list[str]:
    """Slurm tells a job of its end, should the service not have done so long before. It does so up to a minute early,
    and so not at all where that is a good part of the job's life: then its KillWait has to do."""
    if shape.time_limit_s < _LEAST_LIFE_S:
        return []
    return [f"--signal=B:TERM@{min(options.notice_s, shape.time_limit_s // _PART_FOR_NOTICE)}"]


def offer_of(shape: SlurmShape, wait_ms: int, options: SlurmOptions) -> Offer:
    """Its price, its hours and whose it is are those of the pool that is called like the shape."""
    return Offer(
        provider=NAME,
        offer_id=shape.name,
        tier=Tier.OWN,
        gpu_type=shape.gpu_type,
        gpu_count=max(1, shape.gpu_count),
        gpu_memory_bytes=shape.gpu_memory_bytes,
        cpus=shape.cpus,
        memory_bytes=shape.memory_bytes,
        price_per_hour=ZERO,
        startup_ms=options.startup_ms + wait_ms,
        region=shape.name,
    )
