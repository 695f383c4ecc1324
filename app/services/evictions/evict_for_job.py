"""Spot jobs are asked to save and leave, so that a guaranteed job begins where they were."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.evicting import EvictableRun, Eviction
from app.core.model.job import PLACEABLE_JOB_STATES, JobState, PriorityClass
from app.core.model.run import RunState
from app.db.checkpoints.unsaved import at_risk
from app.db.connection import Connection
from app.db.decisions.enactment import free_gpus
from app.db.jobs.set_asides import ClassedJob, classed_jobs, set_aside
from app.db.lock_order import lock_scope
from app.db.moves.planned_moves import open_move_of_job
from app.db.runs.evictable_runs import set_evicted
from app.db.runs.live_runs import live_run_of_job, lock_run
from app.db.transitions import Event, add_job_event
from app.services.moves.ask_to_save import ask_to_save

EVICTS = "evicts"
_LONGEST = 2_000


async def evict_for_job(connection: Connection, eviction: Eviction, *, now_ms: int, until_ms: int) -> bool:
    """Ask all of them, and keep what they leave for the job until then. False, with nothing written, where it is not
    what was decided on any more: the job has a place, or one of them is leaving, moving or done. Then ending the others
    could be in vain."""
    job_id = eviction.job_id
    victims = {run.job_id: run for run in eviction.runs}
    await lock_scope(connection, [job_id, *victims])
    jobs = await classed_jobs(connection, [job_id, *victims])
    if not _may_begin(jobs.get(job_id), now_ms):
        return False
    for victim_id, run in sorted(victims.items()):
        if not await _may_leave(connection, jobs.get(victim_id), run):
            return False
    if not await _would_fit(connection, eviction):
        return False
    for victim_id, run in sorted(victims.items()):
        why = await _why(connection, jobs, run, job_id, now_ms=now_ms)
        await ask_to_save(connection, victim_id, why, now_ms=now_ms)
        await set_evicted(connection, run.run_id, job_id)
    await set_aside(connection, eviction.asides, until_ms=until_ms)
    await add_job_event(connection, job_id, _told(jobs, eviction), now_ms=now_ms)
    return True


def _may_begin(job: ClassedJob | None, now_ms: int) -> bool:
    return (
        job is not None
        and job.state in PLACEABLE_JOB_STATES
        and job.priority_class is PriorityClass.GUARANTEED
        and job.pause_reason is None
        and (job.set_aside_until_ms is None or job.set_aside_until_ms <= now_ms)
    )


async def _may_leave(connection: Connection, job: ClassedJob | None, run: EvictableRun) -> bool:
    if job is None or job.state is not JobState.RUNNING or job.pause_reason is not None:
        return False
    is_spot = job.priority_class is PriorityClass.SPOT
    if is_spot is not run.is_spot or await live_run_of_job(connection, job.job_id) != run.run_id:
        return False
    locked = await lock_run(connection, run.run_id)
    is_alone = locked is not None and locked.state is RunState.RUNNING and locked.job_ids == (job.job_id,)
    return is_alone and await open_move_of_job(connection, job.job_id) is None


async def _would_fit(connection: Connection, eviction: Eviction) -> bool:
    """On a node. What is free of a host is cut from it under its own lock."""
    aside = eviction.asides[0]
    if not any(run.node_id == aside.place for run in eviction.runs):
        return True
    free = await free_gpus(connection, aside.place)
    return free is not None and free + sum(run.gpus for run in eviction.runs) >= aside.gpus


async def _why(
    connection: Connection, jobs: Mapping[str, ClassedJob], run: EvictableRun, for_job_id: str, *, now_ms: int
) -> str:
    """Of a job of another project its owner is not told the name."""
    is_known = jobs[run.job_id].project_id == jobs[for_job_id].project_id
    whose = f"{for_job_id}, which is guaranteed," if is_known else "a guaranteed job of another project"
    which = "" if run.is_spot else f", which are beyond its project's quota of pool {run.pool}"
    if run.is_on_others_hosts:
        which = f", which are of that project's quota of hosts in pool {run.pool}"
    loss = (await at_risk(connection, run.job_id, now_ms=now_ms)).loss
    how = "saves at the next step, leaves and waits for another place" if loss is None else f"leaves; {loss}"
    return f"{whose} needs its GPUs{which}: {how}"


def _told(jobs: Mapping[str, ClassedJob], eviction: Eviction) -> Event:
    """The inequality, and what each of them costs."""
    job_id = eviction.job_id
    words = "; ".join(eviction.words)
    known = []
    for run in eviction.runs:
        if jobs[run.job_id].project_id == jobs[job_id].project_id:
            known.append(run.job_id)
        else:
            words = words.replace(run.job_id, "a job of another project")
    kind = "spot " if all(run.is_spot for run in eviction.runs) else ""
    leave = f"{kind}job saves and leaves" if len(eviction.runs) == 1 else f"{kind}jobs save and leave"
    begins = f"{len(eviction.runs)} {leave} for it" if eviction.runs else "nobody has to leave for it"
    data = {"evicted": known, "evictions": len(eviction.runs), "gpus": sum(one.gpus for one in eviction.asides)}
    return Event(EVICTS, f"{begins}: {words}"[:_LONGEST], data)
