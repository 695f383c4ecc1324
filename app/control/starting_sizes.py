"""Jobs that ask for a range and would miss their deadline with the GPUs that they need begin with more of them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from app.control.context import ControlContext
from app.control.each import each, each_by_itself
from app.control.observe import Observation
from app.core.board import Board
from app.core.elastic.range_moves import first_kind, is_tight, start_of
from app.core.model.health import Chore
from app.core.model.job import JobState
from app.core.model.snapshot import JobView, Snapshot
from app.db.connection import Connection
from app.services.sizes.begin_larger import KnownOfWaiting, LargerStart, begin_larger, read_waiting

# In one decision, which waits for it. The others begin as they are.
_MOST_JOBS = 100
_MOST_S = 0.5


class StartSizer:
    """One per control loop. It looks at each job once, before the first decision on it."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._looked: set[str] = set()

    async def size(self, seen: Observation) -> Observation:
        """Without the jobs that ask for more from now on: they are decided on at once, with the next look."""
        snapshot = seen.snapshot
        tight = {job.job_id: job for job in snapshot.jobs if _is_range_to_begin(job) and is_tight(job, snapshot.now_ms)}
        self._looked &= tight.keys()
        new = [job for job_id, job in tight.items() if job_id not in self._looked][:_MOST_JOBS]
        self._looked |= tight.keys()
        if not new:
            return seen
        sized = await each_by_itself(
            self._context, Chore.LEND, [new], lambda some: self._size(snapshot, some), named=_all
        )
        gone = {job_id for one in sized for job_id in one}
        return replace(
            seen, snapshot=replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.job_id not in gone))
        )

    async def _size(self, snapshot: Snapshot, new: list[JobView]) -> list[str]:
        now_ms = snapshot.now_ms
        board, gpu_types = await asyncio.to_thread(_begins_on, snapshot, new)
        async with self._context.database.statement() as connection:
            known = await read_waiting(connection, gpu_types)
        starts = await asyncio.to_thread(_starts, board, known, gpu_types, now_ms)

        async def act(connection: Connection, start: LargerStart) -> str | None:
            return start.job_id if await begin_larger(connection, start, now_ms=now_ms) else None

        done = await each(self._context, Chore.LEND, starts, act, named=lambda start: start.job_id)
        return [job_id for job_id in done if job_id is not None]


def _begins_on(snapshot: Snapshot, new: list[JobView]) -> tuple[Board, dict[str, str]]:
    """What is on offer for these jobs; and by job, on which kind of GPU it would begin."""
    since, found = time.monotonic(), dict[str, str]()
    board = Board.of(replace(snapshot, jobs=tuple(new), runs=(), nodes=(), merges=()))
    for job in new:
        if time.monotonic() - since > _MOST_S:
            break
        kind = first_kind(board, job)
        found |= {} if kind is None else {job.job_id: kind}
    return board, found


def _starts(board: Board, known: KnownOfWaiting, gpu_types: dict[str, str], now_ms: int) -> list[LargerStart]:
    found, since = [], time.monotonic()
    for one in known.ranges:
        if time.monotonic() - since > _MOST_S:
            break
        job, gpu_type = board.jobs[one.job_id], gpu_types[one.job_id]
        least = job.resources.gpus_min
        growth = start_of(board, job, known.profile(one, gpu_type, least), now_ms)
        found += [] if growth is None else [LargerStart(one.job_id, least, growth)]
    return found


def _is_range_to_begin(job: JobView) -> bool:
    need = job.resources
    return job.state is JobState.QUEUED and need.gpus_max > need.gpus_min and need.nodes == 1 and job.deadline_given


def _all(_: list[JobView]) -> str:
    return "GPUs that jobs begin with"
