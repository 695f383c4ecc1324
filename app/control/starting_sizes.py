"""Jobs that ask for a range and would miss their deadline with the GPUs that they need begin with more of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.control.context import ControlContext
from app.control.each import each, each_by_itself
from app.control.looks import for_a_while
from app.control.observe import Observation
from app.core.board import Board
from app.core.elastic.range_moves import first_kind, is_tight, start_of
from app.core.model.health import Chore
from app.core.model.job import JobState
from app.core.model.snapshot import JobView, Snapshot
from app.db.connection import Connection
from app.db.learning.size_speeds import WaitingRange
from app.services.sizes.begin_larger import KnownOfWaiting, LargerStart, begin_larger, read_waiting

# In one decision, which waits for it. The others are decided on as they are, and looked at before the next one if they
# still wait by then.
_MOST_JOBS = 100
_MOST_S = 0.5  # for each of two steps


class StartSizer:
    """One per control loop. It looks at each job once, before a decision on it: the first that has time for it."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._looked: set[str] = set()

    async def size(self, seen: Observation) -> Observation:
        """Without the jobs that ask for more from now on: they are decided on at once, with the next look."""
        snapshot = seen.snapshot
        tight = {job.job_id: job for job in snapshot.jobs if _is_range_to_begin(job) and is_tight(job, snapshot.now_ms)}
        self._looked &= tight.keys()
        new = [job for job_id, job in tight.items() if job_id not in self._looked][:_MOST_JOBS]
        if not new:
            return seen
        sized = await each_by_itself(
            self._context, Chore.LEND, [new], lambda some: self._size(snapshot, some), named=_all
        )
        gone = {job_id for one in sized for job_id in one}
        return replace(
            seen, snapshot=replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.job_id not in gone))
        )

    async def _size(self, snapshot: Snapshot, new: Sequence[JobView]) -> list[str]:
        now_ms = snapshot.now_ms
        seen = replace(snapshot, jobs=tuple(new), runs=(), nodes=(), merges=())
        board = await asyncio.to_thread(Board.of, seen)
        kinds = await self._kinds(board, new)
        gpu_types = {job_id: kind for job_id, kind in kinds.items() if kind is not None}
        async with self._context.database.statement() as connection:
            known = await read_waiting(connection, gpu_types)
        self._looked |= kinds.keys() - {one.job_id for one in known.ranges}
        starts = await self._starts(board, known, gpu_types, now_ms)

        async def act(connection: Connection, start: LargerStart) -> str | None:
            return start.job_id if await begin_larger(connection, start, now_ms=now_ms) else None

        done = await each(self._context, Chore.LEND, starts, act, named=lambda start: start.job_id)
        return [job_id for job_id in done if job_id is not None]

    async def _kinds(self, board: Board, new: Sequence[JobView]) -> dict[str, str | None]:
        """Of those that there was time for: the kind of GPU that each would begin on, if there is one."""
        found: dict[str, str | None] = {}

        async def look(job: JobView) -> None:
            found[job.job_id] = None
            found[job.job_id] = await asyncio.to_thread(first_kind, board, job)

        each_in_time = for_a_while(new, _MOST_S)
        await each_by_itself(self._context, Chore.LEND, each_in_time, look, named=lambda job: job.job_id)
        return found

    async def _starts(
        self, board: Board, known: KnownOfWaiting, gpu_types: Mapping[str, str], now_ms: int
    ) -> list[LargerStart]:
        async def look(one: WaitingRange) -> LargerStart | None:
            self._looked.add(one.job_id)
            return await asyncio.to_thread(_start, board, known, one, gpu_types[one.job_id], now_ms)

        each_in_time = for_a_while(known.ranges, _MOST_S)
        found = await each_by_itself(self._context, Chore.LEND, each_in_time, look, named=lambda one: one.job_id)
        return [start for start in found if start is not None]


def _start(board: Board, known: KnownOfWaiting, one: WaitingRange, gpu_type: str, now_ms: int) -> LargerStart | None:
    job = board.jobs[one.job_id]
    least = job.resources.gpus_min
    growth = start_of(board, job, known.profile(one, gpu_type, least), now_ms)
    return None if growth is None else LargerStart(one.job_id, least, growth)


def _is_range_to_begin(job: JobView) -> bool:
    need = job.resources
    return job.state is JobState.QUEUED and need.gpus_max > need.gpus_min and need.nodes == 1 and job.deadline_given


def _all(_: Sequence[JobView]) -> str:
    return "GPUs that jobs begin with"
