"""A process ran out of memory: try its job once more where there is more, or say what would help."""

from __future__ import annotations

from allpass.wire.agent import ExitReport
from app.core.lifecycle import Outcome
from app.core.market import kind_fits, offer_fits
from app.core.model.job import JobState, Resources
from app.core.out_of_memory import Ran, judge_out_of_memory, raised, ran_out
from app.db.connection import Connection
from app.db.jobs.memory_retries import MemoryRetries, ask_for_more, asked_by, machine_of, pool_of
from app.db.offers.listed import recent_offers
from app.db.pools.hosts import others_compute_at
from app.db.runs.live_runs import RunRow
from app.db.transitions import Event, add_job_event

BESIDE_OTHERS = "ran out of GPU memory beside processes of others on its GPU"
_OFFERS_MS = 600_000  # a listing that is late is no reason to give a job up


async def ran_out_beside_others(connection: Connection, node_id: str, exit_: ExitReport, *, now_ms: int) -> bool:
    """Whether a process ended for want of GPU memory while somebody else's took some of it, on a host that people
    share. Nothing is to be learned from that, and nothing larger is to be asked for."""
    if ran_out(exit_.exit_code, exit_.last_lines) is not Ran.GPU:
        return False
    return await others_compute_at(connection, node_id, now_ms=now_ms)


async def after_out_of_memory(connection: Connection, run: RunRow, kind: Ran, *, now_ms: int) -> Outcome:
    """What the end means; what the run's jobs ask for is raised where they are tried again. The jobs are locked."""
    machine = await machine_of(connection, run.node_id)
    jobs = await asked_by(connection, run.job_ids)
    more = {job.job_id: raised(job.resources, kind, machine) for job in jobs}
    larger = [await _larger(connection, job, more[job.job_id], now_ms=now_ms) for job in jobs]
    outcome = judge_out_of_memory(
        kind,
        machine,
        jobs[0].resources,
        retries=max(job.retries for job in jobs),
        allowed=min(job.allowed for job in jobs),
        larger=None if None in larger else larger[0],
    )
    if outcome.job_state is not JobState.WAITING:
        return outcome
    for job in jobs:
        wanted = more[job.job_id]
        await ask_for_more(connection, job.job_id, wanted)
        facts = {
            "run_id": run.run_id,
            "memory": kind,
            "gpu_memory_bytes_min": wanted.gpu_memory_bytes_min,
            "memory_bytes_min": wanted.memory_bytes_min,
        }
        await add_job_event(connection, job.job_id, Event("memory_retry", outcome.message, facts), now_ms=now_ms)
    return outcome


async def _larger(connection: Connection, job: MemoryRetries, wanted: Resources, *, now_ms: int) -> str | None:
    """Something that could be rented, or is, and has what is wanted; the cheapest offer if there are several."""
    offers = await recent_offers(connection, now_ms=now_ms, max_age_ms=_OFFERS_MS, project_id=job.project_id)
    fitting = [offer for offer in offers if offer_fits(wanted, offer)]
    if fitting:
        cheapest = min(fitting, key=lambda offer: (offer.price_per_hour, offer.key))
        return f"{cheapest.provider} {cheapest.gpu_type}"
    for gpu_type, gpu_count, gpu_memory_bytes, memory_bytes in await pool_of(connection, job.project_id):
        if (
            gpu_count >= wanted.gpus_min
            and kind_fits(wanted, gpu_type, gpu_memory_bytes)
            and memory_bytes >= wanted.memory_bytes_min
        ):
            return gpu_type
    return None
