"""Decisions about victims in words, with their numbers, for whoever asks why."""

from __future__ import annotations

from app.core.eviction.amounts import Amounts

GPU_SECOND_US = 1_000_000


def shown(amounts: Amounts) -> str:
    return " + ".join(map(str, amounts))


def gpu_seconds(cost_gpu_us: int) -> str:
    return f"{cost_gpu_us / GPU_SECOND_US:.0f} GPU-seconds"


def fits_after(node_id: str, free: Amounts, freed: Amounts, need: Amounts) -> str:
    """The inequality that makes the job fit."""
    return f"{node_id}: {shown(free)} free and {shown(freed)} freed are at least the {shown(need)} needed"
