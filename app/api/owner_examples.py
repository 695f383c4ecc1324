"""Examples of what owners of the installation settle: limits, names of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MODEL_NAME_REQUEST: Final[Mapping[str, Any]] = {"model": "meta-llama/Llama-3.1-8B-Instruct"}
MODEL_NAME: Final[Mapping[str, Any]] = {
    "name": "gpt-4o-mini",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "source": "owner",
    "from_start": "Qwen/Qwen2.5-7B-Instruct",
}
LIMITS: Final[Mapping[str, Any]] = {
    "machines": 2,
    "per_day": 10_000_000,
    "providers": ["modal", "vast"],
    "machines_rented": 1,
    "spent_today": 4_120_000,
    "day_ends_at": "2026-11-22T00:00:00Z",
}
