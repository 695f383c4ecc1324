"""The unfinished jobs of a board as columns: what the demand bound function reads, one vector operation at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from app.core.model.job import JobState
from app.core.model.snapshot import JobView, RunView
from app.core.remaining import LEAST_MS, OUTLIVED_DENOMINATOR, OUTLIVED_NUMERATOR
from app.core.spot_places import level_of_job

Integers = npt.NDArray[np.int64]
_FIRST_SIZE = 64
_UNKNOWN = -1


class JobColumns:
    """A slot per job; slots of jobs that are gone are used again. Times in milliseconds."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._ids: list[str] = []  # by slot; empty: of a job that is gone
        self._size = 0
        self._rows = np.zeros((6, _FIRST_SIZE), dtype=np.int64)
        self._order: npt.NDArray[np.intp] | None = None  # of the slots by deadline, until one changes
        self._deadlines = self._rows[0, :0]

    def put_job(self, job: JobView, *, counts: bool = True) -> None:
        """`counts`: whether its work is its own, and not in the view of the job that it is merged into."""
        slot = self._slots.get(job.job_id)
        if slot is None:
            slot = self._slots[job.job_id] = self._new_slot()
            self._ids[slot] = job.job_id
            self._rows[4, slot] = _UNKNOWN
        if self._rows[0, slot] != job.deadline_ms:
            self._order = None
        counts = counts and job.state != JobState.PAUSED and not job.leaving
        total = _UNKNOWN if job.total_run_ms is None else job.total_run_ms
        self._rows[:4, slot] = (job.deadline_ms, job.resources.gpus_min if counts else 0, total, job.done_ms)
        self._rows[5, slot] = level_of_job(job)

    def put_run(self, job_id: str, run: RunView | None) -> None:
        """The run that holds the job, if any: since when its code runs, or that it does not."""
        if job_id in self._slots:
            since_ms = None if run is None else run.trains_since_ms
            self._rows[4, self._slots[job_id]] = _UNKNOWN if since_ms is None else since_ms

    def drop_job(self, job_id: str) -> None:
        slot = self._slots.pop(job_id)
        self._rows[1, slot] = 0
        self._ids[slot] = ""
        self._free.append(slot)

    def demand(self, now_ms: int, due_by_ms: int, level: int | None = None) -> tuple[Integers, Integers]:
        """Deadlines, in order, and GPU-milliseconds left, of the jobs that are due by then; as `remaining_ms`.
        `level`: of those that may go down so far at most (`app.core.spot_places`); None: of all."""
        if self._order is None:
            self._order = np.argsort(self._rows[0, : self._size], kind="stable")
            self._deadlines = self._rows[0, self._order]
        due = self._order[: int(np.searchsorted(self._deadlines, due_by_ms, side="right"))]
        if level is not None:
            due = due[self._rows[5, due] <= level]
        deadlines, gpus, total, done, since, _ = self._rows[:, due]
        ran = done + np.where(since >= 0, np.maximum(now_ms - since, 0), 0)
        counts = (total >= 0) & (OUTLIVED_DENOMINATOR * ran <= OUTLIVED_NUMERATOR * total)
        left = np.where(counts, total - ran, ran)
        return deadlines, np.maximum(left, LEAST_MS) * gpus

    def late_runs(self, now_ms: int, most: int) -> list[str]:
        """Of the jobs that train and of which it is known how long they run, those that will be done after their
        deadline: so many, the earliest deadlines first."""
        deadline, _, total, done, since, _ = self._rows[:, : self._size]
        ran = done + np.maximum(now_ms - since, 0)
        counts = (since >= 0) & (total >= 0) & (OUTLIVED_DENOMINATOR * ran <= OUTLIVED_NUMERATOR * total)
        counts &= deadline > now_ms  # for the others it is over
        late = np.flatnonzero(counts & (deadline - now_ms < np.maximum(total - ran, LEAST_MS)))
        first = late[np.argsort(deadline[late], kind="stable")][:most] if len(late) > most else late
        return sorted(job_id for slot in first.tolist() if (job_id := self._ids[slot]))

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        if self._size == self._rows.shape[1]:
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)), axis=1)
        self._size += 1
        self._ids.append("")
        self._order = None
        return self._size - 1
