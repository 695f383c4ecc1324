"""The sweep over all types of GPU, counts and micro-batches for one job: part of `benchmarks.memory`."""

from __future__ import annotations

import time
from typing import Any

from app.core.memory import MODELS, Training
from app.core.memory.calibration import Calibrations
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.options import AskedJob, Option, options_for
from app.core.throughput import Throughput

GOAL_MS = 20.0
ROUNDS = 15
COUNTS = (1, 2, 4, 8)
GB = 1_000_000_000
TYPES_GB = {
    "T4": 15.6, "V100": 16.9, "L4": 23.6, "A10": 23.6, "RTX 3090": 25.3, "RTX 4090": 25.3, "RTX 5090": 34.2,
    "A100": 42.3, "A40": 47.7, "L40S": 47.7, "RTX A6000": 50.9, "A100-80GB": 84.9, "H100": 84.9, "H200": 150.0,
    "B200": 191.0,
}  # fmt: skip
"""What drivers report."""

JOBS = {
    "lora 8b": AskedJob("llama-3-8b", MODELS["llama-3-8b"], Training("lora", 1, 2048), 16, 3000),
    "full 8b": AskedJob("llama-3-8b", MODELS["llama-3-8b"], Training("full", 1, 2048), 64, 3000),
    "qlora 70b": AskedJob(
        "llama-3-70b",
        MODELS["llama-3-70b"],
        Training("qlora", 1, 4096, quantisation="nf4_dq", autocast=True),
        64,
        3000,
    ),
}


def sweep() -> dict[str, Any]:
    """Milliseconds for each job, the best of several rounds; `first_ms`: with the compiling of its kind of training."""
    offers = _offers()
    told: dict[str, Any] = {"goal_ms": GOAL_MS, "kinds_of_gpu": len(offers)}
    for name, wish in JOBS.items():
        first_ms, found = _timed(wish, offers)
        best_ms = min(_timed(wish, offers)[0] for _ in range(ROUNDS))
        fits = sum(option.verdict == "fits" for option in found)
        told[name] = {"ms": round(best_ms, 1), "first_ms": round(first_ms), "options": len(found), "fit": fits}
    return told


def _timed(wish: AskedJob, offers: list[Offer]) -> tuple[float, tuple[Option, ...]]:
    started = time.perf_counter()
    found = options_for(wish, offers, Throughput(), Calibrations())
    return (time.perf_counter() - started) * 1000, found


def _offers() -> list[Offer]:
    return [
        Offer(
            provider="any",
            offer_id=f"{name}-{count}",
            tier=Tier.MARKETPLACE,
            gpu_type=name,
            gpu_count=count,
            gpu_memory_bytes=round(size_gb * GB),
            cpus=8 * count,
            memory_bytes=64 * GB * count,
            price_per_hour=Money(round(size_gb * 20_000) * count),
            startup_ms=36_000,
        )
        for name, size_gb in TYPES_GB.items()
        for count in COUNTS
    ]
