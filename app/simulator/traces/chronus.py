"""The traces of Chronus's artifact, in minutes: Philly's arrivals, with durations and sizes of its authors."""

from __future__ import annotations

from pathlib import Path

from app.simulator.tables import read_text, rows_of
from app.simulator.traces.job import TraceJob

COLUMNS = ("job_id", "user", "num_gpu", "submit_time", "duration", "interval", "job_type")
MINUTE_S = 60.0


def jobs_of_chronus(path: Path) -> tuple[list[TraceJob], int]:
    """A job without a GPU, or of no length, is left out. Its deadlines are not read: there may be several for a job."""
    jobs: list[TraceJob] = []
    left_out = 0
    for row in rows_of(path, read_text(path), COLUMNS):
        gpus = row.whole("num_gpu")
        duration_s = row.number("duration") * MINUTE_S
        submit_s = row.number("submit_time") * MINUTE_S
        if gpus == 0 or duration_s == 0:
            left_out += 1
            continue
        jobs.append(
            TraceJob(
                job_id=row.text("job_id"),
                submit_s=submit_s,
                duration_s=duration_s,
                gpus=gpus,
                user=row.text("user"),
                job_type=row.text("job_type"),
                line=row.line,
            )
        )
    return jobs, left_out
