"""How long a job will run: from its steps, else from history, else nobody knows."""

from __future__ import annotations

from app.core.model.job import JobState
from app.core.predicting import with_prediction
from app.core.remaining import ran_ms, remaining_ms
from tests.core.samples import NOW_MS, job, run


def test_steps_left_times_the_time_of_a_step() -> None:
    """Of a running job, by the steps it has done; as time goes on without news, what is left shrinks with it."""
    held = job(state=JobState.RUNNING, step=30, total_steps=100)
    live = run("run_a", "job_a", "node_a", running_since_ms=NOW_MS - 70_000)
    seen = with_prediction(held, live, NOW_MS, step_ms=2_000.0, usual_run_ms=1.0)
    assert seen.total_run_ms == 200_000
    assert (ran_ms(seen, live, NOW_MS), remaining_ms(seen, live, NOW_MS)) == (60_000, 140_000)
    assert remaining_ms(seen, live, NOW_MS + 10_000) == 130_000


def test_a_waiting_job_goes_on_from_its_checkpoint() -> None:
    """Steps after the checkpoint are done again."""
    held = job(state=JobState.WAITING, step=30, checkpoint_step=20, total_steps=100)
    seen = with_prediction(held, None, NOW_MS, step_ms=1_000.0, usual_run_ms=None)
    assert remaining_ms(seen, None, NOW_MS) == 80_000


def test_without_steps_history_counts() -> None:
    """What the app's jobs usually take, less what this one has run."""
    held = job(state=JobState.WAITING, done_ms=40_000)
    seen = with_prediction(held, None, NOW_MS, step_ms=None, usual_run_ms=100_000.4)
    assert (seen.total_run_ms, remaining_ms(seen, None, NOW_MS)) == (100_000, 60_000)


def test_without_anything_the_view_stays_as_it_is() -> None:
    """Then as much is left as has been."""
    held = job(state=JobState.WAITING, total_steps=100, done_ms=40_000)
    seen = with_prediction(held, None, NOW_MS, step_ms=None, usual_run_ms=None)
    assert seen is held
    assert remaining_ms(seen, None, NOW_MS) == 40_000
