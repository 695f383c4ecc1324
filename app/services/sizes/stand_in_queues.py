"""Where jobs stand that share machines with elastic ones: judged, demoted, promoted, and learned from as they end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from app.core.elastic.kinds import judge_kind
from app.core.elastic.queues import QueueThresholds
from app.core.elastic.rules import ElasticRules
from app.core.elastic.standing import JobUse, QueueStanding, first_standing, standing_now
from app.db.connection import Connection
from app.db.learning.run_speeds import paces_of
from app.db.queues.standings import QueuedJob, job_uses, queued_jobs, set_standings
from app.db.queues.thresholds import (
    EndedInQueue,
    ended_unseen,
    set_counted,
    set_thresholds,
    thresholds_of,
)

_ENOUGH_STEPS = 5  # two to warm up, three that are measured (section 4.3)


@dataclass(frozen=True, slots=True)
class StandingJob:
    """A job, where it stands now, and what it has had."""

    job: QueuedJob
    standing: QueueStanding
    use: JobUse

    @property
    def has_changed(self) -> bool:
        return self.standing != self.job.kept


async def look_at_queues(
    connection: Connection, job_ids: Collection[str], rules: ElasticRules, *, now_ms: int
) -> tuple[list[StandingJob], dict[str, QueueThresholds]]:
    """Where these jobs stand now, with the thresholds of their projects. Writes nothing."""
    jobs = await queued_jobs(connection, job_ids)
    thresholds = await thresholds_of(connection, {job.project_id for job in jobs})
    first = {job.job_id: job.kept or first_standing(job.evidence) for job in jobs}
    since = [(job.job_id, first[job.job_id].since_ms, job.asked) for job in jobs]
    uses = await job_uses(connection, since, now_ms=now_ms) if since else {}
    shown = await _shown_steps(connection, [job for job in jobs if job.job_id in uses and job.evidence.steps])
    found = []
    for job in jobs:
        use = uses.get(job.job_id, JobUse())
        standing = standing_now(
            first[job.job_id],
            replace(job.evidence, step_s=shown.get(job.job_id)),
            use,
            thresholds=thresholds.get(job.project_id, QueueThresholds()),
            rules=rules,
            now_ms=now_ms,
        )
        found.append(StandingJob(job, standing, use))
    return found, thresholds


async def set_changed(connection: Connection, found: Sequence[StandingJob], *, now_ms: int) -> int:
    """Write where they stand; how many that were."""
    await set_standings(connection, [(one.job, one.standing) for one in found], now_ms=now_ms)
    return len(found)


async def count_ended(connection: Connection, ended: EndedInQueue, *, now_ms: int) -> bool:
    """Its running time counts in the means of its project, once. One that never ran shows nothing."""
    return await set_counted(connection, ended.job_id) and bool(await _count(connection, [ended], now_ms=now_ms))


async def count_unseen(connection: Connection, job_ids: Collection[str], *, now_ms: int) -> int:
    """The running times of those of these that have ended count in the means of their projects, but of those that
    stood beside an elastic job, which `count_ended` counts; how many did. To be asked once about each."""
    ran = await ended_unseen(connection, job_ids)
    found = await queued_jobs(connection, ran.keys()) if ran else []
    ended = [EndedInQueue(job.job_id, job.project_id, judge_kind(job.evidence).kind, ran[job.job_id]) for job in found]
    return await _count(connection, ended, now_ms=now_ms)


async def _count(connection: Connection, ended: Sequence[EndedInQueue], *, now_ms: int) -> int:
    ended = [one for one in ended if one.run_s > 0]
    projects = sorted({one.project_id for one in ended})
    known = await thresholds_of(connection, projects) if projects else {}
    for one in ended:
        known[one.project_id] = known.get(one.project_id, QueueThresholds()).after(one.kind, one.run_s)
    for project_id in projects:
        await set_thresholds(connection, project_id, known[project_id], now_ms=now_ms)
    return len(ended)


async def _shown_steps(connection: Connection, jobs: Sequence[QueuedJob]) -> dict[str, float]:
    """Seconds per step, of those whose present run has shown enough of them."""
    unsure = [job.job_id for job in jobs if _may_learn(job)]
    paces = await paces_of(connection, unsure) if unsure else {}
    found = {}
    for job_id, pace in paces.items():
        step_ms = pace.step_ms()
        if step_ms is not None and pace.last_step - pace.first_step >= _ENOUGH_STEPS:
            found[job_id] = step_ms / 1000
    return found


def _may_learn(job: QueuedJob) -> bool:
    """Whether its progress would be stronger evidence than what it was judged by."""
    full = replace(job.evidence, step_s=1.0)
    return job.kept is None or first_standing(full).source > job.kept.source
