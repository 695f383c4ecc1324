"""Who comes first, and what a job has used up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from app.core.model.budget import Allowance
from app.core.model.job import PLACEABLE_JOB_STATES, JobState, PriorityClass
from app.core.model.node import Tier
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, RunView

EdfKey = tuple[bool, int, int, str]


def is_spot(job: JobView) -> bool:
    """Whether the job uses what guaranteed jobs leave, and may be evicted for one of them."""
    return job.priority_class == PriorityClass.SPOT


def edf_key(job: JobView) -> EdfKey:
    """Guaranteed jobs before spot jobs, then the earliest deadline; ties by submission, then by id."""
    return (is_spot(job), job.deadline_ms, job.submitted_ms, job.job_id)


def in_turn(jobs: Sequence[JobView], machines: Mapping[str, int]) -> list[JobView]:
    """Jobs that come in the order of their projects, so that all projects have their turn, the guaranteed jobs of all
    before the spot jobs of any. `machines`: how many each project has now.

    A project's next machine counts against it: its job comes once every project that wants one would have as many. So
    whoever has least comes first, however many jobs another one waits with. Within a project and class, and with one
    project alone, the order stays as it is.
    """
    jobs = sorted(jobs, key=is_spot)
    would_have = dict(machines)
    ranks = []
    for job in jobs:
        rank = would_have.get(job.project_id, 0)
        would_have[job.project_id] = rank + 1
        ranks.append(rank)
    if len({job.project_id for job in jobs}) < 2:
        return jobs
    return [jobs[place] for place in sorted(range(len(jobs)), key=lambda place: (is_spot(jobs[place]), ranks[place]))]


def waits_until_ms(job: JobView) -> int | None:
    """When a job that has never started has waited as long as its owner lets it; None: it has begun, or nobody said."""
    most_ms = job.caps.max_wait_ms
    return None if most_ms is None or job.state != JobState.QUEUED else job.submitted_ms + most_ms


def has_waited_enough(job: JobView, now_ms: int) -> bool:
    """Whether nothing but its limits, and what there is, may keep the job from its first place any longer."""
    until_ms = waits_until_ms(job)
    return until_ms is not None and now_ms >= until_ms


def may_wait_ms(job: JobView, now_ms: int) -> float:
    """For how long the job may still be kept waiting; infinite where nothing limits it."""
    until_ms = waits_until_ms(job)
    return math.inf if until_ms is None else until_ms - now_ms


def is_placeable(job: JobView) -> bool:
    """Whether the job has no place and wants one."""
    return job.state in PLACEABLE_JOB_STATES


def serverless_used_ms(job: JobView, run: RunView | None, now_ms: int) -> int:
    """Training on serverless nodes so far: ended runs, and `run` up to now when it is a serverless one."""
    if run is None or run.tier != Tier.SERVERLESS or run.trains_since_ms is None:
        return job.serverless_used_ms
    return job.serverless_used_ms + max(0, now_ms - run.trains_since_ms)


def budget_ends_ms(job: JobView, run: RunView | None, budget_ms: int, now_ms: int) -> int | None:
    """When a running serverless stay reaches the budget F; None when time alone does not bring it about."""
    if run is None or run.tier != Tier.SERVERLESS or run.trains_since_ms is None:
        return None
    ends_ms = run.trains_since_ms + budget_ms - job.serverless_used_ms
    return ends_ms if ends_ms > now_ms else None


def is_running(run: RunView) -> bool:
    """Whether a run trains its job, and has not been asked to stop."""
    return run.state == RunState.RUNNING and run.trains_since_ms is not None


def cost_cap_reached(job: JobView) -> bool:
    """Whether the job's ledger has reached the most its user wants to pay."""
    return job.caps.max_cost is not None and job.spent >= job.caps.max_cost


def used_up_budget(job: JobView) -> Allowance | None:
    """A budget that is used up, wherever the job would run."""
    return next((one for one in job.allowances if one.provider is None and one.used_up), None)


def has_spent_all(job: JobView) -> bool:
    """Whether nothing more may be spent on the job: by its own limit, or by a budget that it counts against."""
    return cost_cap_reached(job) or used_up_budget(job) is not None
