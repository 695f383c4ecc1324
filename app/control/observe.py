"""What a decision sees: the world, and what has failed of it lately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.control.budgets import see_budgets
from app.control.context import ControlContext, as_ms
from app.control.failed_actions import Effort
from app.core.limits import within_limits
from app.core.model.snapshot import JobView, Snapshot
from app.core.policies import goes_by_queues
from app.db.decisions.changed_rows import Looked
from app.db.decisions.item_failures import FailureKey, ItemFailure, failures_now
from app.db.decisions.snapshots import Memory, freeze, read_snapshot
from app.db.money.limits import read_limits, rented_now
from app.db.unreadable import RowReading
from app.services.nodes.check_addresses import real_providers

_EFFORTS = frozenset(Effort)


@dataclass(frozen=True, slots=True)
class Observation:
    """`reading`: the rows that could not be read. `failures`: what failed before, and until when it rests. `looked`: at
    which moment of the database."""

    snapshot: Snapshot
    reading: RowReading
    failures: Mapping[FailureKey, ItemFailure]
    looked: Looked | None

    def resting(self, what: str) -> set[str]:
        """Ids of which nothing of this kind is tried now."""
        now_ms = self.snapshot.now_ms
        return {row_id for (row_id, kind), one in self.failures.items() if kind == what and one.not_before_ms > now_ms}

    def next_try_ms(self) -> int | None:
        """When the next one that rests may be tried again."""
        now_ms = self.snapshot.now_ms
        later = [one.not_before_ms for one in self.failures.values() if one.not_before_ms > now_ms]
        return min(later, default=None)


async def observe(context: ControlContext, memory: Memory) -> Observation:
    """Everything at one moment. What `memory` has seen before is not read again."""
    settings, reading = context.settings, RowReading()
    async with context.database.transaction() as connection:
        await freeze(connection)
        failures = await failures_now(connection)
        snapshot = await read_snapshot(
            connection,
            context.clock.now_ms(),
            context.traits(),
            settings.offers_gone_after_ms,
            usual_image=settings.node_image,
            lifetime_margin_ms=as_ms(settings.lifetime_margin_s),
            merging=bool(settings.merging),
            by_queues=goes_by_queues(settings.policy),
            reading=reading,
            memory=memory,
        )
        real = real_providers(settings)
        if real:
            rented = await rented_now(connection, real, now_ms=snapshot.now_ms)
            snapshot = within_limits(snapshot, real, await read_limits(connection), rented)
        snapshot = await see_budgets(connection, reading, snapshot, now_ms=snapshot.now_ms)
    return Observation(_with_rests(snapshot, failures), reading, failures, memory.looked)


def _with_rests(snapshot: Snapshot, failures: Mapping[FailureKey, ItemFailure]) -> Snapshot:
    """A policy is told in its own terms what is not to be tried yet, so that nobody waits for a place that is kept."""
    resting = {row_id for row_id, what in failures if what in _EFFORTS}
    if not resting:
        return snapshot
    return replace(
        snapshot,
        jobs=tuple(
            _with_rest(job, failures, snapshot.now_ms) if job.job_id in resting else job for job in snapshot.jobs
        ),
    )


def _with_rest(job: JobView, failures: Mapping[FailureKey, ItemFailure], now_ms: int) -> JobView:
    until = {effort: failures.get((job.job_id, effort)) for effort in Effort}
    later = {
        effort: one.not_before_ms for effort, one in until.items() if one is not None and one.not_before_ms > now_ms
    }
    if not later:
        return job
    return replace(
        job,
        not_before_ms=max(job.not_before_ms, later.get(Effort.PLACE, 0)),
        not_moved_before_ms=max(job.not_moved_before_ms, later.get(Effort.MOVE, 0)),
        recipe=None if Effort.MERGE in later else job.recipe,  # it is placed by itself meanwhile
    )
