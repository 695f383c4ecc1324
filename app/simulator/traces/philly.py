"""The job log of Microsoft's Philly clusters: one JSON list, with every attempt to run a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from app.errors import InvalidInput
from app.simulator.tables import read_text
from app.simulator.traces.clocks import seconds_of
from app.simulator.traces.job import TraceJob

STATES: Mapping[str, str] = MappingProxyType({"Pass": "completed", "Killed": "cancelled", "Failed": "failed"})
NOTHING = (None, "", "None")  # how the log says that it does not know an instant


def jobs_of_philly(path: Path) -> tuple[list[TraceJob], int]:
    """A job's duration is that of its attempts together, its GPUs those of the last one. A job of which an attempt has
    no start or no end (it was still running, or the log lost it) is left out.
    """
    try:
        entries = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"{path} line {error.lineno}, character {error.colno}: is not JSON ({error.msg}); "
            "give the file cluster_job_log as it was published",
            param="path",
        ) from None
    if not isinstance(entries, list):
        raise InvalidInput(f"{path}: is not a list of jobs; give the file cluster_job_log", param="path")
    jobs: list[TraceJob] = []
    for place, entry in enumerate(entries):
        job = _Entry(path, place, entry).job()
        if job is not None:
            jobs.append(job)
    return jobs, len(entries) - len(jobs)


class _Entry:
    def __init__(self, path: Path, place: int, entry: Any) -> None:
        self._path = path
        self._place = place
        if not isinstance(entry, dict):
            self._fail("jobid", entry, "is not a job", "an object with jobid, submitted_time and attempts")
        self._entry: dict[str, Any] = entry

    def job(self) -> TraceJob | None:
        job_id = self._entry.get("jobid")
        if not isinstance(job_id, str) or not job_id:
            self._fail("jobid", job_id, "is no id", "text")
        submit_s = self._instant("submitted_time", self._entry.get("submitted_time"))
        attempts = self._entry.get("attempts")
        if not isinstance(attempts, list):
            self._fail("attempts", attempts, "is not a list", "the list of attempts, which may be empty")
        duration_s = 0.0
        gpus = 0
        for number, attempt in enumerate(attempts):
            if not isinstance(attempt, dict):
                self._fail(f"attempts[{number}]", attempt, "is not an attempt", "an object")
            start_s = self._instant(f"attempts[{number}].start_time", attempt.get("start_time"))
            end_s = self._instant(f"attempts[{number}].end_time", attempt.get("end_time"))
            if start_s is None or end_s is None:
                return None
            duration_s += max(0.0, end_s - start_s)
            gpus = self._gpus(number, attempt.get("detail")) or gpus
        if submit_s is None or gpus == 0:
            return None
        status = str(self._entry.get("status", ""))
        user = str(self._entry.get("user") or "")
        return TraceJob(job_id, submit_s, duration_s, gpus, user=user, state=STATES.get(status, status.lower()))

    def _gpus(self, number: int, detail: Any) -> int:
        try:
            return sum(len(machine["gpus"]) for machine in detail or ())
        except (TypeError, KeyError):
            self._fail(f"attempts[{number}].detail", detail, "is no list of machines", 'machines with "gpus"')

    def _instant(self, field: str, value: Any) -> float | None:
        if value in NOTHING:
            return None
        seconds = seconds_of(value) if isinstance(value, str) else None
        if seconds is None:
            self._fail(field, value, "is no instant", "one like 2017-10-07 01:12:09")
        return seconds

    def _fail(self, field: str, value: Any, why: str, fix: str) -> NoReturn:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        raise InvalidInput(
            f"{self._path} job number {self._place + 1}, {field}: {shown} {why}; give {fix}", param=field
        )
