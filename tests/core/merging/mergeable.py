"""Jobs of the built-in recipe for tests: half an hour on one GPU, 18 minutes on two, unless said otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.core.model.job import JobState, StartRule
from app.core.model.merge import MergeMode, MergeView, Recipe
from app.core.model.snapshot import JobView
from tests.core.samples import job

NOW_MS = 100_000_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
ALIKE, OTHER = (4.0, 1.0, 0.5, 0.1), (-0.1, -0.5, 1.0, -4.0)  # tasks that help each other, and one that does not
RECIPE = Recipe(
    base="base-a", tokenizer="tok-a", labels="pos,neg", sequence=512, precision="bf16", settings="set-a",
    fisher=(4.0, 1.0, 0.5, 0.1), pull=ALIKE,
    step_ms=((1, 1000.0), (2, 600.0)),
)  # fmt: skip


def mergeable(name: str, state: JobState = JobState.QUEUED, **changes: Any) -> JobView:
    """`recipe` may be a dict of what differs in it."""
    recipe = changes.pop("recipe", {})
    values: dict[str, Any] = {
        "submitted_ms": NOW_MS,
        "deadline_ms": NOW_MS + 10 * HOUR_MS,
        "start": StartRule.AUTO,
        "total_run_ms": 30 * MINUTE_MS,
        "recipe": replace(RECIPE, **recipe),
    }
    return job(name, state, **(values | changes))


def merge_of(lead: str, companion: str, mode: MergeMode = MergeMode.IN_TURN, **changes: Any) -> MergeView:
    values: dict[str, Any] = {"gpus": 1, "row_version": 3, "score": 0.9, "gain": 0.2}
    return MergeView("merge_a", lead, companion, mode, **(values | changes))
