"""Jobs as lines of a table: enough to find one among many, and to see how it is doing."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from allpass.wire.base import MicroUsd, Page, Response
from allpass.wire.jobs import JobStatus, Where


class JobLine(Response):
    """`reason`, `message`: why it ended, is paused, or waits. `losses`: of its metric `loss`, oldest first, thinned to
    what fits into a cell."""

    id: str
    name: str
    app_id: str
    app_name: str
    sweep_id: str | None = None
    status: JobStatus
    priority_class: Literal["guaranteed", "spot"] = Field(
        "guaranteed", description="`spot`: it leaves its GPUs when a guaranteed job needs them"
    )
    reason: str | None = None
    message: str | None = None
    where: Where | None = None
    step: int
    total_steps: int | None = None
    moves: int
    faults: int
    cost: MicroUsd
    saved: int | None = Field(
        None,
        description="micro-dollars: what it would have cost all serverless, less `cost`; null: nothing was done yet",
    )
    soft_deadline: datetime
    submitted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    estimated_finish_at: datetime | None = None
    step_ms: float | None = Field(None, description="milliseconds per step, as its present run has measured lately")
    losses: list[float] = Field(default_factory=list, max_length=24)
    labels: dict[str, str]


class JobTable(Page[JobLine]):
    """`total`: jobs that the filter finds; `counts`: by status, as if it named none. Of each status up to 10,000 are
    counted: 10,001 says that there are more. `position`: where the stream of changes goes on from this page."""

    total: int
    counts: dict[str, int]
    position: str


class JobChanges(Response):
    """Jobs that have changed, as they are now. `counts`: all jobs of the project, by status."""

    data: list[JobLine]
    counts: dict[str, int]
