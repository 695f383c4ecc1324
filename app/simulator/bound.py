"""The bound `clairvoyant`: what no policy can beat in a flat market of rented machines, each job trained by itself.

Every job runs from its submission to its end on the cheapest tier: no boot, no move, no rounding, no limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.core.model.money import MICROS_PER_USD
from app.errors import InvalidInput
from app.simulator.options import Options
from app.simulator.outcomes import JobOutcome, SimulationResult
from app.simulator.scenario import PROVIDERS, Task

CLAIRVOYANT = "clairvoyant"
HOUR_MS = 3_600_000


def bound(tasks: tuple[Task, ...], options: Options) -> SimulationResult:
    """Cost: work x GPUs x the lowest price. Completion: work. Raises InvalidInput where prices move, where there are
    machines of one's own, or jobs may merge: two that are trained together may take less work than each alone."""
    if options.merges:
        raise InvalidInput(
            "--policy clairvoyant: is a bound for jobs that are trained alone only, and they may merge; leave it out, "
            "or take --merging off",
            param="policy",
        )
    if options.has_own:
        raise InvalidInput(
            "--policy clairvoyant: is a bound for what is rented, and there are machines of your own; leave it out, or "
            "take --pool none",
            param="policy",
        )
    if not options.is_flat:
        raise InvalidInput(
            f"--policy clairvoyant: is a bound for flat prices only, and the market is {options.market}; "
            "leave it out, or take --market flat",
            param="policy",
        )
    if options.gpu_types != "one":
        raise InvalidInput(
            "--policy clairvoyant: is a bound for one type of GPU, and jobs may take several; leave it out, or take "
            "--gpu-types one",
            param="policy",
        )
    if options.bids:
        raise InvalidInput(
            "--policy clairvoyant: is a bound for what is rented on demand, and some jobs bid; leave it out, or "
            "take --bids 0",
            param="policy",
        )
    if any(task.elastic is not None for task in tasks):
        raise InvalidInput(
            "--policy clairvoyant: is a bound for jobs that have the GPUs that they ask for, and some take ranges; "
            "leave it out, or take --elastic 0 and no max_gpus in the trace",
            param="policy",
        )
    usd, tier = min((usd, tier) for tier, usd in options.flat_usd().items())
    outcomes = tuple(
        JobOutcome(
            task.job_id,
            task.submit_ms,
            task.work_ms,
            task.gpus,
            task.deadline_ms,
            started_ms=task.submit_ms,
            finished_ms=task.submit_ms + task.work_ms,
            cost_usd=usd * task.gpus * task.work_ms / HOUR_MS,
            tiers=tier.value[0],
        )
        for task in tasks
    )
    gpu_ms = sum(task.work_ms * task.gpus for task in tasks)
    bill = round(usd * MICROS_PER_USD * gpu_ms / HOUR_MS)
    name = PROVIDERS[tier]
    most_nodes = _most_at_once(tasks, [1 for _ in tasks])
    most_gpus = _most_at_once(tasks, [task.gpus for task in tasks])
    return SimulationResult(outcomes, {name: bill}, most_nodes, 0, {name: gpu_ms}, most_gpus)


def _most_at_once(tasks: tuple[Task, ...], counts: Sequence[int]) -> int:
    """Each job has a node of its own, with as many GPUs as it asks for."""
    ends = [(task.submit_ms + task.work_ms, -count) for task, count in zip(tasks, counts, strict=True)]
    begins = [(task.submit_ms, count) for task, count in zip(tasks, counts, strict=True)]
    running = most = 0
    for _, change in sorted([*ends, *begins]):
        running += change
        most = max(most, running)
    return most
