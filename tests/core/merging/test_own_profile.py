"""Which runs look at their own task before they train."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.merging.own_profile import profiles_itself
from tests.core.merging.mergeable import MINUTE_MS, mergeable
from tests.core.samples import job

FRESH: dict[str, Any] = {"pull": ()}


@pytest.mark.parametrize("run_ms", [None, 5 * MINUTE_MS, 30 * MINUTE_MS])
def test_a_job_whose_task_nobody_knows_looks_itself(run_ms: int | None) -> None:
    """If it takes long enough beside that, or nobody knows how long."""
    assert profiles_itself(mergeable("job_a", recipe=FRESH, total_run_ms=run_ms), 5 * MINUTE_MS)


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {}},
        {"recipe": FRESH | {"profile_tries": 1}},
        {"recipe": FRESH | {"shares": False}},
        {"recipe": FRESH, "done_ms": 5},
        {"recipe": FRESH, "checkpoint_step": 0},
        {"recipe": FRESH, "total_run_ms": 5 * MINUTE_MS - 1},
    ],
    ids=["known", "tried in vain", "opted out", "progress", "checkpoint", "short"],
)
def test_nobody_looks_in_vain(changes: dict[str, Any]) -> None:
    """What is found would be known already, of no use to others, or dear beside the job."""
    assert not profiles_itself(mergeable("job_a", **changes), 5 * MINUTE_MS)


def test_code_of_a_user_is_not_looked_at() -> None:
    """Only the built-in recipe can describe a task."""
    assert not profiles_itself(job("job_a"), 0)
