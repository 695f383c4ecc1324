"""One play of a policy by name, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.core.elastic.rules import LITERAL, MENDED
from app.errors import InvalidInput
from app.simulator.elastic.baselines import FlowSizes, RigidSizes, ShortestSizes, TiresiasSizes
from app.simulator.elastic.cornucopia import CornucopiaSizes
from app.simulator.elastic.costs import FREE, ResizeModel
from app.simulator.elastic.engine import ElasticEngine, PlayedJob, SizePolicy
from app.simulator.elastic.workload import MixedJob
from app.simulator.traces.describing import quantile

# Ours with one point of ADR 0097 read as the paper has it: what each of them is worth.
ONE_LITERAL = {
    "point 1 literal": replace(MENDED, by_own_second_gpu=True),
    "point 2 literal": replace(MENDED, preempts_by_gain=True),
    "point 3 literal": replace(MENDED, least_served=False),
    "point 4 literal": replace(MENDED, resets=False),
    "point 8 literal": replace(MENDED, heeds_costs=False),
}
RULES_OF = {"cornucopia": MENDED, "cornucopia-literal": LITERAL, **ONE_LITERAL}
POLICIES = ("cornucopia", "cornucopia-literal", "tiresias", "srtf", "fifo", "elasticflow")


def policy_named(name: str, jobs: Sequence[MixedJob], capacity: int, costs: ResizeModel) -> SizePolicy:
    """Raises InvalidInput for another name than those of POLICIES and ONE_LITERAL."""
    if name in RULES_OF:
        return CornucopiaSizes(jobs, capacity, RULES_OF[name], costs)
    match name:
        case "tiresias":
            return TiresiasSizes(jobs, capacity)
        case "srtf":
            return ShortestSizes(jobs, capacity)
        case "fifo":
            return RigidSizes(jobs, capacity, preempts=False)
        case "elasticflow":
            return FlowSizes(jobs, capacity)
    raise InvalidInput(f"policy: {name!r} is none of {', '.join(POLICIES)}", param="policy")


def play(name: str, jobs: Sequence[MixedJob], capacity: int, costs: ResizeModel = FREE) -> dict[str, Any]:
    """Figures of one play. Raises InvalidInput where a job asks for more GPUs than there are, or there is no job."""
    if not jobs or max(one.request for one in jobs) > capacity:
        raise InvalidInput(f"gpus: {capacity} are fewer than a job asks for, or there is no job", param="gpus")
    return figures(jobs, ElasticEngine(jobs, capacity, policy_named(name, jobs, capacity, costs), costs).play())


def figures(jobs: Sequence[MixedJob], played: Sequence[PlayedJob]) -> dict[str, Any]:
    """Means and quantiles, in seconds. Waiting is to the first GPU, and to the requested size: for a job that never had
    it, until its end. `at_once`: the share that has a GPU as it is submitted. Slowdown is completion over duration."""
    told: dict[str, Any] = {
        "mean_jct_s": _mean([one.end_s - job.submit_s for job, one in zip(jobs, played, strict=True)]),
        "mean_slowdown": _mean(
            [(one.end_s - job.submit_s) / job.duration_s for job, one in zip(jobs, played, strict=True)]
        ),
        "resizes": sum(one.resizes for one in played),
        "pauses_gpu_h": round(sum(one.waste_gpu_s for one in played) / 3600, 1),
        "makespan_s": max(one.end_s for one in played) - jobs[0].submit_s,
    }
    for kind, wanted in (("interactive", True), ("batch", False)):
        pairs = [(job, one) for job, one in zip(jobs, played, strict=True) if job.is_interactive is wanted]
        first = sorted(one.first_gpu_s - job.submit_s for job, one in pairs)
        full = sorted(
            (one.full_size_s if one.full_size_s == one.full_size_s else one.end_s) - job.submit_s for job, one in pairs
        )
        told[kind] = {
            "jobs": len(pairs),
            "mean_jct_s": _mean([one.end_s - job.submit_s for job, one in pairs]),
            "at_once": _mean([float(one <= 0.0) for one in first]),
            "mean_first_gpu_s": _mean(first),
            "p99_first_gpu_s": quantile(first, 0.99) if first else 0.0,
            "mean_full_size_s": _mean(full),
            "p95_full_size_s": quantile(full, 0.95) if full else 0.0,
            "mean_slowdown": _mean([(one.end_s - job.submit_s) / job.duration_s for job, one in pairs]),
        }
    return told


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
