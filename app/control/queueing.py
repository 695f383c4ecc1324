"""Where jobs stand that wait for GPUs of elastic ones, or lend them: looked at beside lending, and kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.control.context import ControlContext
from app.control.each import each, each_by_itself, in_batches
from app.core.elastic.queues import QueueThresholds
from app.core.elastic.rules import RULES
from app.core.elastic.runs import ElasticRun
from app.core.elastic.sharing import NO_USE, GpuSharing
from app.core.model.health import Chore
from app.core.model.snapshot import Snapshot
from app.core.policies import goes_by_queues
from app.db.connection import Connection
from app.db.queues.thresholds import EndedInQueue, ended_in_queues
from app.services.sizes.stand_in_queues import (
    StandingJob,
    count_ended,
    count_unseen,
    look_at_queues,
    set_changed,
)

_AGAIN_MS = 15_000  # a job that waits again may rise
_FRESH_MS = 600_000  # one that never ran stays where it stands, but for what others of its app show
_AT_ONCE = 1_000
_COUNTED_AT_ONCE = 200


class QueueKeeper:
    """One per control loop. It remembers where waiting jobs stand, for a while; all else is in rows."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._rules = RULES[context.settings.elastic_rules]
        self._seen: dict[str, tuple[int, StandingJob]] = {}
        self._thresholds: dict[str, QueueThresholds] = {}
        self._counted_ms: int | None = None
        self._running: frozenset[str] = frozenset()  # at the last decision

    async def learn(self, snapshot: Snapshot) -> None:
        """Where a policy goes by queues, all jobs of a project show how long its jobs run: of those that ran at the
        last decision and do not now, the ones that have ended count. What ends while nobody leads is left out."""
        if not goes_by_queues(self._context.settings.policy):
            return
        running = frozenset(job_id for run in snapshot.runs for job_id in run.job_ids)
        left, self._running = sorted(self._running - running), running
        now_ms = self._context.clock.now_ms()

        async def act(connection: Connection, some: Sequence[str]) -> int:
            return await count_unseen(connection, some, now_ms=now_ms)

        await in_batches(self._context, Chore.LEND, left, act, at_once=_COUNTED_AT_ONCE)

    async def sharing(self, snapshot: Snapshot, runs: Sequence[ElasticRun], waiting: Collection[str]) -> GpuSharing:
        """What is known of those who lend and of those of their projects that wait. Where that fails nothing is known,
        and GPUs are lent as without queues."""
        found = await each_by_itself(
            self._context, Chore.LEND, [runs], lambda some: self._sharing(snapshot, some, waiting), named=_all
        )
        return found[0] if found else GpuSharing(self._rules)

    async def _sharing(self, snapshot: Snapshot, runs: Sequence[ElasticRun], waiting: Collection[str]) -> GpuSharing:
        now_ms = self._context.clock.now_ms()
        await self._count(now_ms)
        lenders = {run.job_id for run in runs}
        projects = {job.project_id for job in snapshot.jobs if job.job_id in lenders}
        concerned = lenders | {
            job.job_id for job in snapshot.jobs if job.job_id in waiting and job.project_id in projects
        }
        self._seen = {job_id: seen for job_id, seen in self._seen.items() if job_id in concerned}
        stale = {job_id for job_id in concerned if job_id in lenders or self._is_old(job_id, now_ms)}
        await self._look(stale, now_ms)
        known = {job_id: seen for job_id, (_, seen) in self._seen.items()}
        return GpuSharing(
            self._rules,
            {job_id: one.standing for job_id, one in known.items()},
            {job_id: one.use for job_id, one in known.items()},
            thresholds=self._thresholds,
            projects={job_id: one.job.project_id for job_id, one in known.items()},
        )

    def _is_old(self, job_id: str, now_ms: int) -> bool:
        seen = self._seen.get(job_id)
        if seen is None:
            return True
        return not 0 <= now_ms - seen[0] < (_FRESH_MS if seen[1].use == NO_USE else _AGAIN_MS)

    async def _look(self, job_ids: Collection[str], now_ms: int) -> None:
        context = self._context
        async with context.database.transaction() as connection:
            found, self._thresholds = await look_at_queues(connection, job_ids, self._rules, now_ms=now_ms)

        async def act(connection: Connection, some: Sequence[StandingJob]) -> int:
            return await set_changed(connection, some, now_ms=now_ms)

        changed = [one for one in found if one.has_changed]
        await in_batches(context, Chore.LEND, changed, act, at_once=_AT_ONCE, named=lambda one: one.job.job_id)
        self._seen |= {one.job.job_id: (now_ms, one) for one in found}

    async def _count(self, now_ms: int) -> None:
        """Jobs that have ended since the last look: the means are of these."""
        if self._counted_ms is not None and 0 <= now_ms - self._counted_ms < _AGAIN_MS:
            return
        self._counted_ms = now_ms
        async with self._context.database.statement() as connection:
            ended = await ended_in_queues(connection, limit=_COUNTED_AT_ONCE)

        async def act(connection: Connection, one: EndedInQueue) -> bool:
            return await count_ended(connection, one, now_ms=now_ms)

        await each(self._context, Chore.LEND, ended, act, named=lambda one: one.job_id)


def _all(_: Sequence[ElasticRun]) -> str:
    return "where jobs stand that share GPUs"
