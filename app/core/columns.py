"""The unfinished jobs of a board as columns: what the demand bound function reads, one vector operation at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from app.core.model.job import JobState
from app.core.model.snapshot import JobView, RunView
from app.core.remaining import LEAST_MS

Integers = npt.NDArray[np.int64]
_FIRST_SIZE = 64
_UNKNOWN = -1


class JobColumns:
    """A slot per job; slots of jobs that are gone are used again. Times in milliseconds."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._size = 0
        self._rows = np.zeros((5, _FIRST_SIZE), dtype=np.int64)

    def put_job(self, job: JobView) -> None:
        slot = self._slots.get(job.job_id)
        if slot is None:
            slot = self._slots[job.job_id] = self._new_slot()
            self._rows[4, slot] = _UNKNOWN
        counts = job.state != JobState.PAUSED and not job.leaving
        total = _UNKNOWN if job.total_run_ms is None else job.total_run_ms
        self._rows[:4, slot] = (job.deadline_ms, job.resources.gpus_min if counts else 0, total, job.done_ms)

    def put_run(self, run: RunView) -> None:
        """When the job's code began to run, or that it does not."""
        since_ms = _UNKNOWN if run.running_since_ms is None else run.running_since_ms
        for job_id in run.job_ids:
            if job_id in self._slots:
                self._rows[4, self._slots[job_id]] = since_ms

    def forget_run(self, job_id: str) -> None:
        """No run holds the job any more."""
        if job_id in self._slots:
            self._rows[4, self._slots[job_id]] = _UNKNOWN

    def drop_job(self, job_id: str) -> None:
        slot = self._slots.pop(job_id)
        self._rows[1, slot] = 0
        self._free.append(slot)

    def demand(self, now_ms: int, due_by_ms: int) -> tuple[Integers, Integers]:
        """Deadlines, and GPU-milliseconds left, of the jobs that are due by then; as `remaining_ms`, all at once."""
        deadlines, gpus, total, done, since = self._rows[:, : self._size]
        due = np.flatnonzero((deadlines <= due_by_ms) & (gpus > 0))
        total, since = total[due], since[due]
        ran = done[due] + np.where(since >= 0, np.maximum(now_ms - since, 0), 0)
        left = np.where(total >= 0, total - ran, ran)
        return deadlines[due], np.maximum(left, LEAST_MS) * gpus[due]

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        if self._size == self._rows.shape[1]:
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)), axis=1)
        self._size += 1
        return self._size - 1
