"""Run times that are predicted wrongly: they cost no more than if nothing had been foretold."""

from __future__ import annotations

import pytest

from app.core.model.plan import ActionKind
from tests.simulator.scenarios import Seen, simulate, task

HOURS_10_S = 36_000


def nights(predicted_ms: int | None) -> Seen:
    """Jobs of ten hours, one every ten minutes."""
    tasks = (task(f"job_{n}", HOURS_10_S, at_s=600 * n, predicted_ms=predicted_ms) for n in range(6))
    return simulate("allpass", *tasks)


@pytest.mark.parametrize("predicted_s", [0.001, 10, 100, 600, 3_600])
def test_jobs_that_outlive_their_prediction_leave_serverless(predicted_s: float) -> None:
    """A usual run of the app was a minute of debugging; these are the night's. Each moves once, for good."""
    wrong, none = nights(round(predicted_s * 1000)), nights(None)
    assert wrong.result.cost_usd <= 1.01 * none.result.cost_usd
    assert len(wrong.of(ActionKind.MIGRATE)) + len(wrong.of(ActionKind.DEMOTE)) <= 6
