"""What the control loop saw and chose, decision by decision."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from allpass.wire.base import Response


class Decision(Response):
    """One decision of the control loop, over all projects. What its policy does not measure is null."""

    id: int
    at: datetime
    policy: str
    trigger: str = Field(description="why it was taken: tick, wake, a change")
    pressure: float | None = Field(description="p: above 1, the rented GPUs alone cannot keep every deadline")
    serverless_budget_s: float | None = Field(description="F: how long a job may stay serverless")
    capacity_gpus: float | None = Field(description="C: rented GPUs, those that boot included")
    demand_gpu_s: float | None = Field(description="D: GPU-seconds of work due within the horizon")
    jobs_waiting: int
    nodes: dict[str, int] = Field(description="by tier")
    actions: dict[str, int] = Field(description="what was chosen, by kind")
    reasons: list[str] = Field(description="of the actions on the caller's jobs and nodes, in words")
    duration_ms: int


class Pressure(Response):
    """The newest decisions, newest first."""

    policy: str | None = Field(description="of the newest decision; null before the first")
    decisions: list[Decision]
