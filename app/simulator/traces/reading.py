"""Reads a trace from csv or csv.gz.

The columns are named in the first line, in any order; others than these are ignored:

    job_id         text, once in the file
    submit_time_s  seconds from the start of the trace, 0 or more
    duration_s     seconds that the job runs for; empty: unknown, and the row is left out
    num_gpus       whole number; 0 or empty: the row is left out
    deadline_s     optional, seconds from the submission; empty: none
    kind           optional, batch or interactive; empty: batch
    saves          optional, yes or no (it never saves, and is not moved); empty: yes
    max_gpus       optional, of a job that takes a range of GPUs from num_gpus on: 8 at most; empty: exactly num_gpus
    parallel       optional, the part of its step that all GPUs share, from 0 to 1; empty: 0.9
    gpu_type, state, user, job_type    optional text

The files of the Tiresias simulator (job_id, num_gpu, submit_time, duration) are known by their header and read too.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from app.core.resizing import MOST_GPUS as MOST_OF_A_RANGE
from app.errors import InvalidInput
from app.simulator.tables import TableRow, header_of, read_text, rows_of
from app.simulator.traces.job import BATCH, KINDS, USUAL_PARALLEL, Trace, TraceJob

COLUMNS = (
    "job_id",
    "submit_time_s",
    "duration_s",
    "num_gpus",
    "gpu_type",
    "state",
    "user",
    "job_type",
    "deadline_s",
    "kind",
    "saves",
)
RANGES = ("max_gpus", "parallel")  # written where a job has one
REQUIRED = COLUMNS[:4]
OURS: Mapping[str, str] = MappingProxyType({name: name for name in COLUMNS})
TIRESIAS: Mapping[str, str] = MappingProxyType(
    {
        **OURS,
        "submit_time_s": "submit_time",
        "duration_s": "duration",
        "num_gpus": "num_gpu",
        "job_type": "model_name",
    }
)
CHRONUS = frozenset({"num_gpu", "submit_time", "duration", "expect_time_list"})  # else its minutes would be seconds


def read_trace(path: Path, *, start_s: float = 0.0, most_jobs: int | None = None) -> Trace:
    """The jobs of a file. Rows without a duration or without GPUs are no jobs to simulate: they are counted.

    `start_s` leaves out what was submitted before, and counts times from there; `most_jobs` keeps the first ones.
    A file that breaks the format raises InvalidInput, which names the file, the line, the column and the value.
    """
    if start_s < 0:
        raise InvalidInput(f"start_s: {start_s:g} is negative; give seconds from the start of the trace", param="start")
    if most_jobs is not None and most_jobs < 1:
        raise InvalidInput(f"most_jobs: {most_jobs} is below 1; give how many jobs to keep", param="most_jobs")
    text = read_text(path)
    header = header_of(path, text)
    if set(header) >= CHRONUS:
        raise InvalidInput(
            f"{path} line 1: is a file of Chronus, whose times are minutes; use allpass trace import chronus",
            param="path",
        )
    names = TIRESIAS if _is_tiresias(header) else OURS
    jobs: list[TraceJob] = []
    lines: dict[str, int] = {}
    left_out = 0
    for row in rows_of(path, text, [names[one] for one in REQUIRED]):
        job_id = _job_id(row, lines)
        if row.text(names["duration_s"]) == "" or row.text(names["num_gpus"]) in ("", "0", "0.0"):
            left_out += 1
            continue
        jobs.append(_job(row, job_id, names))
    if not jobs:
        raise InvalidInput(
            f"{path}: holds no job with a duration and a GPU; {left_out} rows have neither", param="path"
        )
    trace = Trace.of(path.name.removesuffix(".gz").removesuffix(".csv"), jobs, left_out)
    cut = trace.cut(start_s=start_s, most_jobs=most_jobs)
    if not cut.jobs:
        last_s = trace.jobs[-1].submit_s
        raise InvalidInput(
            f"start_s: nothing is submitted after {start_s:g} s; the last job of {path} comes at {last_s:g} s",
            param="start",
        )
    return cut


def text_of(trace: Trace) -> str:
    """The documented columns as csv, from which `read_trace` gives the same jobs back."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ranges = trace.has_ranges
    writer.writerow((*COLUMNS, *RANGES) if ranges else COLUMNS)
    for job in trace.jobs:
        deadline = "" if job.deadline_s is None else _plain(job.deadline_s)
        about = (job.gpu_type, job.state, job.user, job.job_type)
        last: tuple[object, ...] = (deadline, job.kind, "" if job.saves else "no")
        if ranges:
            last = (*last, *(("", "") if job.most_gpus is None else (job.most_gpus, _plain(job.parallel))))
        writer.writerow((job.job_id, _plain(job.submit_s), _plain(job.duration_s), job.gpus, *about, *last))
    return text.getvalue()


def write_trace(trace: Trace, path: Path) -> None:
    """Writes `text_of` a trace, packed if the name ends in .gz."""
    data = text_of(trace).encode()
    try:
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written ({error.strerror}); name another file", param="out") from None


def _is_tiresias(names: list[str]) -> bool:
    return {"num_gpu", "submit_time", "duration"} <= set(names) and "num_gpus" not in names


def _job_id(row: TableRow, lines: dict[str, int]) -> str:
    job_id = row.text("job_id")
    if not job_id:
        row.fail("job_id", "is empty", "give every job an id")
    if job_id in lines:
        row.fail("job_id", f"is also in line {lines[job_id]}", "give every job its own id")
    lines[job_id] = row.line
    return job_id


def _job(row: TableRow, job_id: str, names: Mapping[str, str]) -> TraceJob:
    kind = row.text("kind") or BATCH
    if kind not in KINDS:
        row.fail("kind", "is no kind of job", f"choose from {', '.join(KINDS)}")
    saves = row.text("saves") or "yes"
    if saves not in ("yes", "no"):
        row.fail("saves", "does not say whether the job saves", "choose from yes, no")
    deadline = row.number("deadline_s") if row.text("deadline_s") else None
    if deadline == 0:
        row.fail("deadline_s", "leaves no time", "give seconds from the submission, or leave the cell empty")
    gpus = row.whole(names["num_gpus"], least=1)
    return TraceJob(
        job_id=job_id,
        submit_s=row.number(names["submit_time_s"]),
        duration_s=row.number(names["duration_s"]),
        gpus=gpus,
        deadline_s=deadline,
        kind=kind,
        user=row.text("user"),
        gpu_type=row.text("gpu_type"),
        state=row.text("state"),
        job_type=row.text(names["job_type"]),
        saves=saves == "yes",
        most_gpus=_most_gpus(row, gpus),
        parallel=_parallel(row),
        line=row.line,
    )


def _most_gpus(row: TableRow, gpus: int) -> int | None:
    if not row.text("max_gpus"):
        return None
    most = row.whole("max_gpus", least=1)
    if not gpus <= most <= MOST_OF_A_RANGE:
        fix = f"give {MOST_OF_A_RANGE} at most, or leave the cell empty"
        row.fail("max_gpus", f"ends no range that begins with {gpus} GPUs", fix)
    return most


def _parallel(row: TableRow) -> float:
    if not row.text("parallel"):
        return USUAL_PARALLEL
    part = row.number("parallel")
    if part > 1:
        row.fail("parallel", "is more than a whole step", "give a number from 0 to 1, or leave the cell empty")
    return part


def _plain(value: float) -> str:
    """`12` and not `12.0`; otherwise the shortest text that gives the same number back."""
    return str(int(value)) if value == int(value) else repr(value)
