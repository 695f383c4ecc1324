"""Imports the traces that clusters have published, in the files as they are downloaded.

All give the same `Trace`: times count from the first submission; `duration_s` is the time on the GPUs, without
queueing; what has no GPU, or no start or end, is left out and counted; states are completed, failed and cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from app.errors import InvalidInput
from app.simulator import packages
from app.simulator.traces.alibaba import jobs_of_alibaba
from app.simulator.traces.chronus import jobs_of_chronus
from app.simulator.traces.job import Trace, TraceJob
from app.simulator.traces.philly import jobs_of_philly
from app.simulator.traces.slurm import jobs_of_acme, jobs_of_helios

Found = tuple[list[TraceJob], int]  # the jobs, their times on any clock, and how many rows are no jobs

READERS: Mapping[str, Callable[[Path], Found]] = MappingProxyType(
    {
        "philly": jobs_of_philly,
        "helios": jobs_of_helios,
        "acme": jobs_of_acme,
        "alibaba": jobs_of_alibaba,
        "chronus": jobs_of_chronus,
    }
)


def import_trace(source: str, path: Path) -> Trace:
    """The jobs of a published file.

    - `philly`: `cluster_job_log` of msr-fiddle/philly-traces
    - `helios`: `cluster_log.csv` of S-Lab-System-Group/HeliosData
    - `acme`: `trace_seren.csv` or `trace_kalos.csv` of InternLM/AcmeTrace
    - `alibaba`: `openb_pod_list_*.csv` (cluster-trace-gpu-v2023) or `pai_task_table.csv` (cluster-trace-gpu-v2020) of
      alibaba/clusterdata
    - `chronus`: `trace_job_Philly_*.csv` of S-Lab-System-Group/ChronusArtifact

    - else what a package reads (`app.simulator.packages`)

    A file of another form raises InvalidInput, which names the place in it.
    """
    reader = READERS.get(source)
    if reader is None:
        others = packages.names_of(packages.TRACES)
        if source not in others:
            raise InvalidInput(f"source: {source!r} is none of {', '.join((*READERS, *others))}", param="source")
        return packages.trace_of(source, path)
    jobs, left_out = reader(path)
    if not jobs:
        raise InvalidInput(
            f"{path}: holds no job that ran on a GPU; {left_out} rows were left out. Is it the file of {source}?",
            param="path",
        )
    first_s = min(job.submit_s for job in jobs)
    ids: dict[str, int] = {}
    moved = [replace(job, submit_s=job.submit_s - first_s, job_id=_own(job.job_id, ids)) for job in jobs]
    return Trace.of(source, moved, left_out)


def _own(job_id: str, ids: dict[str, int]) -> str:
    """An id for each row: a job that was put back into its queue has several, of the same id."""
    ids[job_id] = count = ids.get(job_id, 0) + 1
    return job_id if count == 1 else f"{job_id}#{count}"
