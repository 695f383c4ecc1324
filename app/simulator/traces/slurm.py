"""Logs in the form of Slurm's accounting: SenseTime's Helios, and Shanghai AI Laboratory's Acme (Seren and Kalos)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from app.simulator.tables import TableRow, read_text, rows_of
from app.simulator.traces.clocks import seconds_of
from app.simulator.traces.job import TraceJob

COLUMNS = ("job_id", "user", "gpu_num", "state", "submit_time", "start_time", "end_time", "duration")
STATES: Mapping[str, str] = MappingProxyType(
    {
        "COMPLETED": "completed",
        "CANCELLED": "cancelled",
        "FAILED": "failed",
        "TIMEOUT": "failed",
        "NODE_FAIL": "failed",
    }
)
ACME_GPU = "A100"


def jobs_of_helios(path: Path) -> tuple[list[TraceJob], int]:
    """`cluster_log.csv`, with the GPU jobs and the jobs without a GPU of one cluster."""
    return _jobs(path, COLUMNS, gpu_type="")


def jobs_of_acme(path: Path) -> tuple[list[TraceJob], int]:
    """`trace_seren.csv` or `trace_kalos.csv`; what kind of work a job was for is its `job_type`."""
    return _jobs(path, (*COLUMNS, "type"), gpu_type=ACME_GPU)


def _jobs(path: Path, columns: tuple[str, ...], *, gpu_type: str) -> tuple[list[TraceJob], int]:
    jobs: list[TraceJob] = []
    left_out = 0
    for row in rows_of(path, read_text(path), columns):
        gpus = row.whole("gpu_num") if row.text("gpu_num") else 0
        duration_s = _duration_s(row) if gpus else None
        if duration_s is None:
            left_out += 1
            continue
        state = row.text("state")
        jobs.append(
            TraceJob(
                job_id=row.text("job_id"),
                submit_s=_instant_s(row, "submit_time"),
                duration_s=duration_s,
                gpus=gpus,
                user=row.text("user"),
                gpu_type=gpu_type,
                state=STATES.get(state, state.lower()),
                job_type=row.text("type"),
                line=row.line,
            )
        )
    return jobs, left_out


def _duration_s(row: TableRow) -> float | None:
    """From start to end. The column `duration` says so too, but in Kalos's log it counts the time in the queue."""
    if row.text("start_time") and row.text("end_time"):
        return max(0.0, _instant_s(row, "end_time") - _instant_s(row, "start_time"))
    return row.number("duration") if row.text("duration") and row.text("start_time") else None


def _instant_s(row: TableRow, column: str) -> float:
    seconds = seconds_of(row.text(column))
    if seconds is None:
        row.fail(column, "is no instant", "give one like 2023-03-01 00:18:22+08:00")
    return seconds
