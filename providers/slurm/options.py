"""How one cluster is used."""

from __future__ import annotations

from dataclasses import dataclass

from providers.slurm.shapes import SlurmShape


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """`commands`: the folder of sbatch, squeue, scancel, sinfo and sacct; empty: wherever PATH has them. `conf`: a
    slurm.conf that is not the usual one. `log_folder`: of both this host and the nodes; empty: nothing is kept.

    `scratch`: on the nodes, where each machine has a folder. `setup`: shell that a job runs first (`module load ...`).
    `notice_s`: so long before its time is up, Slurm itself tells a job; less where that is short.
    """

    shapes: tuple[SlurmShape, ...]
    commands: str = ""
    conf: str = ""
    log_folder: str = ""
    scratch: str = "/tmp"  # noqa: S108 - a folder of the nodes; whose it is there, the job's script looks
    setup: str = ""
    max_wait_ms: int = 120_000
    startup_ms: int = 15_000
    startup_deadline_ms: int = 300_000
    create_grace_ms: int = 60_000
    notice_s: int = 120
    call_every_ms: int = 200
    timeout_s: float = 10.0
