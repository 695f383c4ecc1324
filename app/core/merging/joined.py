"""Two jobs that train side by side, seen as one: the lead's view, standing for both while their merge is open."""

from __future__ import annotations

from dataclasses import replace

from app.core import queue
from app.core.model.job import Affinity, JobKind, PriorityClass, Resources
from app.core.model.merge import MergeView
from app.core.model.snapshot import JobView

_LABELS = ("own", "beside", "apart")


def joined(lead: JobView, companion: JobView, merge: MergeView) -> JobView:
    """The lead as policies see it: with the earlier deadline, the GPUs and the run time of both, and whatever binds
    either of them.

    `done_ms` stays the lead's: neither has made progress when it is merged, so this is what the pair has done. The cost
    cap is that of the job which has less left to spend, the limit per hour the lower one, the budgets are those of
    both, and neither waits longer than it may.
    """
    tighter = min((lead, companion), key=_left_to_spend)
    hourly = [job.caps.max_hourly for job in (lead, companion) if job.caps.max_hourly is not None]
    untils_ms = [until_ms for job in (lead, companion) if (until_ms := queue.waits_until_ms(job)) is not None]
    waits_ms = max(0, min(untils_ms) - lead.submitted_ms) if untils_ms else None
    return replace(
        lead,
        resources=_both(lead.resources, companion.resources, merge.gpus),
        deadline_ms=min(lead.deadline_ms, companion.deadline_ms),
        total_run_ms=both_ms(lead, companion, merge.gpus, merge.gain),
        kind=JobKind.INTERACTIVE if JobKind.INTERACTIVE in (lead.kind, companion.kind) else JobKind.BATCH,
        priority_class=PriorityClass.SPOT
        if lead.priority_class == companion.priority_class == PriorityClass.SPOT
        else PriorityClass.GUARANTEED,
        caps=replace(tighter.caps, max_hourly=min(hourly, default=None), max_wait_ms=waits_ms),
        spent=tighter.spent,
        serverless_used_ms=max(lead.serverless_used_ms, companion.serverless_used_ms),
        not_before_ms=max(lead.not_before_ms, companion.not_before_ms),
        not_moved_before_ms=max(lead.not_moved_before_ms, companion.not_moved_before_ms),
        avoided_offers=lead.avoided_offers | companion.avoided_offers,
        unreached_offers=lead.unreached_offers | companion.unreached_offers,
        affinity=Affinity(*(getattr(lead.affinity, one) | getattr(companion.affinity, one) for one in _LABELS)),
        locked=lead.locked or companion.locked,
        unsaved=lead.unsaved or companion.unsaved,
        saves=lead.saves and companion.saves,
        never_saves=lead.never_saves or companion.never_saves,
        leaving=lead.leaving or companion.leaving,
        allowances=tuple(dict.fromkeys((*lead.allowances, *companion.allowances))),
    )


def both_ms(lead: JobView, companion: JobView, gpus: int, gain: float) -> int | None:
    """Equation 4: the steps of both on so many GPUs, shortened by the gain. None: of one nobody knows how long."""
    times = [_total_ms(job, gpus) for job in (lead, companion)]
    known = [one for one in times if one is not None]
    return max(1, round(sum(known) / (1 + gain))) if len(known) == len(times) else None


def _total_ms(job: JobView, gpus: int) -> int | None:
    """From first step to last on so many GPUs. A number of GPUs that was never measured takes as long as its own."""
    if job.total_run_ms is None:
        return None
    step_ms = {} if job.recipe is None else dict(job.recipe.step_ms)
    own_ms, there_ms = step_ms.get(job.resources.gpus_min), step_ms.get(gpus)
    if own_ms is None or there_ms is None:
        return job.total_run_ms
    return max(1, round(job.total_run_ms * (there_ms / own_ms)))


def _left_to_spend(job: JobView) -> float:
    return float("inf") if job.caps.max_cost is None else float((job.caps.max_cost - job.spent).micros)


def _both(lead: Resources, companion: Resources, gpus: int) -> Resources:
    """Each step is of one job only, so both take what the larger one takes."""
    types = {kind for kind, _ in (*lead.gpu_memory_bytes_by_type, *companion.gpu_memory_bytes_by_type)}
    return replace(
        lead,
        gpus_min=gpus,
        gpus_max=gpus,
        gpu_type=lead.gpu_type or companion.gpu_type,
        gpu_memory_bytes_min=max(lead.gpu_memory_bytes_min, companion.gpu_memory_bytes_min),
        gpu_memory_bytes_by_type=tuple(
            (kind, max(_bytes(one, kind) for one in (lead, companion))) for kind in sorted(types)
        ),
        cpus_min=max(lead.cpus_min, companion.cpus_min),
        memory_bytes_min=max(lead.memory_bytes_min, companion.memory_bytes_min),
    )


def _bytes(resources: Resources, kind: str) -> int:
    return dict(resources.gpu_memory_bytes_by_type).get(kind, resources.gpu_memory_bytes_min)
