"""How long a job has still to train: what is believed, and when."""

from __future__ import annotations

import pytest

from app.core.merging.estimates import last_step, sizes_of, train_ms
from app.core.model.job import JobState
from app.core.model.run import RunState
from tests.core.merging.mergeable import MINUTE_MS, NOW_MS, RECIPE, mergeable
from tests.core.samples import run


def losses(until: int) -> tuple[tuple[int, float], ...]:
    """Of a job that comes down to 0.7 with step 1000."""
    return tuple((step, 0.5 + 2 / (1 + 9 * step / 1000)) for step in range(0, until + 1, 20))


def test_history_counts_until_half_is_seen() -> None:
    """A prediction from history holds while less than half of the curve's steps are seen; then the curve does."""
    known = {"target_loss": 0.7}
    young = mergeable("job_a", recipe=known | {"losses": losses(400)})
    assert train_ms(young, None, 1, NOW_MS) == 30 * MINUTE_MS
    old = mergeable("job_a", recipe=known | {"losses": losses(600)}, done_ms=600_000)
    assert train_ms(old, None, 1, NOW_MS) == pytest.approx(400_000, rel=0.02)


def test_the_curve_alone_where_nothing_else_is_known() -> None:
    """Without a prediction the curve counts from the beginning; without either nothing is known."""
    early = mergeable("job_a", recipe={"target_loss": 0.7, "losses": losses(200)}, total_run_ms=None)
    assert train_ms(early, None, 1, NOW_MS) == pytest.approx(1_000_000, rel=0.05)
    assert train_ms(mergeable("job_a", total_run_ms=None), None, 1, NOW_MS) is None
    assert last_step((), 0.7) is None


def test_time_follows_the_table() -> None:
    """On two GPUs it takes what a step takes there; on a number that was never measured nobody knows."""
    job = mergeable("job_a")
    assert sizes_of(RECIPE) == (1, 2)
    assert train_ms(job, None, 2, NOW_MS) == 18 * MINUTE_MS
    assert train_ms(job, None, 3, NOW_MS) is None


def test_what_has_run_is_taken_off() -> None:
    """Of a job that trains, what its present run has done counts too, and never less than a second is left."""
    job = mergeable("job_a", JobState.RUNNING, done_ms=5 * MINUTE_MS)
    held = run("run_a", "job_a", "node_a", RunState.RUNNING, running_since_ms=NOW_MS - 10 * MINUTE_MS)
    assert train_ms(job, held, 1, NOW_MS) == 15 * MINUTE_MS
    assert train_ms(job, held, 1, NOW_MS + 20 * MINUTE_MS) == 1_000
    assert train_ms(job, held, 1, NOW_MS + 60 * MINUTE_MS) is None, "it has outlived its prediction"
