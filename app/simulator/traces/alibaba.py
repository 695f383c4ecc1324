"""Alibaba's GPU clusters: the pods of cluster-trace-gpu-v2023, and the tasks of cluster-trace-gpu-v2020 (PAI).

Both share GPUs between jobs. A share counts as a whole GPU here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from app.simulator.tables import TableRow, header_of, read_text, rows_of
from app.simulator.traces.job import TraceJob

POD_COLUMNS = ("name", "num_gpu", "gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
TASK_COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
POD_STATES: Mapping[str, str] = MappingProxyType({"Succeeded": "completed", "Failed": "failed", "Running": "running"})


def jobs_of_alibaba(path: Path) -> tuple[list[TraceJob], int]:
    """Told apart by the columns. The PAI table is published without a header, which may be missing here too."""
    text = read_text(path)
    names = header_of(path, text)
    if "creation_time" in names:
        return _pods(rows_of(path, text, POD_COLUMNS))
    if "plan_gpu" not in names and len(names) == len(TASK_COLUMNS):
        text = ",".join(TASK_COLUMNS) + "\n" + text
    return _tasks(rows_of(path, text, TASK_COLUMNS))


def _pods(rows: Iterable[TableRow]) -> tuple[list[TraceJob], int]:
    """A pod that was running when the log ended has run until then."""
    jobs: list[TraceJob] = []
    left_out = 0
    for row in rows:
        gpus = row.whole("num_gpu")
        if gpus == 0 or not row.text("scheduled_time") or not row.text("deletion_time"):
            left_out += 1
            continue
        jobs.append(
            TraceJob(
                job_id=row.text("name"),
                submit_s=row.number("creation_time"),
                duration_s=max(0.0, row.number("deletion_time") - row.number("scheduled_time")),
                gpus=gpus,
                gpu_type=row.text("gpu_spec"),
                state=POD_STATES.get(row.text("pod_phase"), row.text("pod_phase").lower()),
                job_type=row.text("qos"),
                line=row.line,
            )
        )
    return jobs, left_out


@dataclass(slots=True)
class _Tasks:
    """The tasks of one job."""

    line: int
    start_s: float = math.inf
    end_s: float = 0.0
    gpus: float = 0.0
    gpu_type: str = ""
    states: set[str] = field(default_factory=set)
    whole: bool = True  # every task has a start and an end


def _tasks(rows: Iterable[TableRow]) -> tuple[list[TraceJob], int]:
    """A job is submitted when its first task is launched, which is what the table knows, and ends with its last."""
    found: dict[str, _Tasks] = {}
    for row in rows:
        tasks = found.setdefault(row.text("job_name"), _Tasks(row.line))
        if not row.text("start_time") or not row.text("end_time"):
            tasks.whole = False
            continue
        tasks.start_s = min(tasks.start_s, row.number("start_time"))
        tasks.end_s = max(tasks.end_s, row.number("end_time"))
        if row.text("plan_gpu"):
            instances = row.number("inst_num") if row.text("inst_num") else 1.0
            tasks.gpus += instances * row.number("plan_gpu") / 100
            tasks.gpu_type = tasks.gpu_type or row.text("gpu_type")
        tasks.states.add(row.text("status"))
    jobs = [
        TraceJob(
            job_id=name,
            submit_s=tasks.start_s,
            duration_s=max(0.0, tasks.end_s - tasks.start_s),
            gpus=math.ceil(tasks.gpus - 1e-9),
            gpu_type=tasks.gpu_type,
            state="completed" if tasks.states == {"Terminated"} else "failed",
            line=tasks.line,
        )
        for name, tasks in found.items()
        if tasks.whole and tasks.gpus > 0
    ]
    return jobs, len(found) - len(jobs)
