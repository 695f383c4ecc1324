"""What became of every job, and the figures of a whole simulation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.core.model.money import MICROS_PER_USD

TEN_MINUTES_MS = 600_000
HOUR_MS = 3_600_000


@dataclass(slots=True)
class JobOutcome:
    """One job's. `work_ms`: what it trains for, merged or not; `alone_ms`: what it would alone. `tiers`: the first
    letters of the tiers it ran on, in order. `cost_usd`: of the GPUs while they were its own, and of being profiled;
    boot and idle time of rented nodes is nobody's. `merged`: how, if it ended so.
    """

    job_id: str
    submit_ms: int
    work_ms: int
    gpus: int
    deadline_ms: int
    started_ms: int | None = None
    finished_ms: int = 0
    move_ms: int = 0  # saving and loading
    fetch_ms: int = 0  # what the job needs, and begins with, once its machine was there
    saving_ms: int = 0  # waited for its own saves
    slowed_ms: int = 0  # trained longer than on the usual type of GPU; below 0: shorter
    moves: int = 0
    faults: int = 0
    lost_bids: int = 0
    lost_ms: int = 0  # trained twice, for its machine failed or it could not save
    cost_usd: float = 0.0
    boot_usd: float = 0.0  # of it, while serverless machines came up
    tiers: str = ""
    alone_ms: int = 0
    merged: str = ""
    splits: int = 0

    @property
    def jct_ms(self) -> int:
        return self.finished_ms - self.submit_ms

    @property
    def wait_ms(self) -> int:
        """Completion minus the time of its work, on the GPUs that it had."""
        return self.jct_ms - self.work_ms - self.slowed_ms

    @property
    def fairness(self) -> float:
        """Finish-time fairness: completion over what it would take alone, at once, on GPUs of its own."""
        return self.jct_ms / (self.alone_ms or self.work_ms)

    @property
    def missed(self) -> bool:
        return self.finished_ms > self.deadline_ms


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """`bills`: micro-dollars by provider. `most_nodes`: rented nodes at once, at most, whatever their size; `most_gpus`
    says how many GPUs. `billed_gpu_ms`: what the bills are for, by provider: GPU-milliseconds. `beside`: figures that
    only markets with bids have, and worlds that are not friendly."""

    outcomes: tuple[JobOutcome, ...]
    bills: dict[str, int]
    most_nodes: int
    decisions: int
    billed_gpu_ms: dict[str, int] = field(default_factory=dict)
    most_gpus: int = 0
    beside: dict[str, float] = field(default_factory=dict)

    @property
    def cost_usd(self) -> float:
        return sum(self.bills.values()) / MICROS_PER_USD

    def figures(self) -> dict[str, Any]:
        """The figures by name; seconds and dollars. `boot_usd`: what jobs paid while serverless machines came up;
        `idle_usd`: of rented machines while no job held them, billed units that were begun included."""
        jct_s = np.array([one.jct_ms for one in self.outcomes]) / 1000
        wait_s = np.array([one.wait_ms for one in self.outcomes]) / 1000
        move_s = np.array([one.move_ms for one in self.outcomes]) / 1000
        late_s = np.array([max(0, one.finished_ms - one.deadline_ms) for one in self.outcomes]) / 1000
        missed = sum(one.missed for one in self.outcomes)
        only_serverless = sum(set(one.tiers) == {"s"} for one in self.outcomes)
        beside_usd = self.beside.get("storage_usd", 0) + self.beside.get("traffic_usd", 0)
        jobs_usd = sum(one.cost_usd for one in self.outcomes)
        p50, p90, p99 = (float(value) for value in np.percentile(jct_s, (50, 90, 99)))
        return {
            "mean_jct_s": float(jct_s.mean()),
            "p50_jct_s": p50,
            "p90_jct_s": p90,
            "p99_jct_s": p99,
            "share_within_10_min": float((jct_s <= TEN_MINUTES_MS / 1000).mean()),
            "mean_queue_s": float((wait_s - move_s).mean()),
            "mean_move_s": float(move_s.mean()),
            "mean_wait_s": float(wait_s.mean()),
            "share_serverless": only_serverless / len(self.outcomes),
            "deadline_misses": missed,
            "deadline_miss_share": missed / len(self.outcomes),
            "mean_tardiness_s": float(late_s.mean()),
            "cost_usd": self.cost_usd,
            "cost_by_provider_usd": {name: micros / MICROS_PER_USD for name, micros in sorted(self.bills.items())},
            "gpu_hours_by_provider": {name: gpu_ms / HOUR_MS for name, gpu_ms in sorted(self.billed_gpu_ms.items())},
            "boot_usd": sum(one.boot_usd for one in self.outcomes),
            "idle_usd": self.cost_usd - jobs_usd - beside_usd,
            "faults": sum(one.faults for one in self.outcomes),
            "lost_s": sum(one.lost_ms for one in self.outcomes) / 1000,
            "peak_nodes": self.most_nodes,
            "peak_gpus": self.most_gpus,
            "moves": sum(one.moves for one in self.outcomes),
            "mean_fairness": float(np.mean([one.fairness for one in self.outcomes])),
            "merged": sum(bool(one.merged) for one in self.outcomes),
            "splits": sum(one.splits for one in self.outcomes) // 2,
        } | self.beside
