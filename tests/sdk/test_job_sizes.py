"""How many GPUs a job has had, as `allpass show` prints it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from allpass.cli.job_sizes import print_table
from allpass.wire.jobs import JobSize

AT = datetime(2026, 11, 29, 8, tzinfo=UTC)


def size(gpus: int, before: int | None, **changes: Any) -> JobSize:
    at = AT + timedelta(minutes=0 if before is None else 10)
    told: dict[str, Any] = {
        "run_id": "run_1", "node_id": "node_1", "gpu_type": "A100", "gpus": gpus, "gpus_before": before,
        "price_per_hour": 1, "from_at": at, "to_at": at + timedelta(minutes=10), "why": "begun", "text": "as asked",
        "for_job_id": None,
    }  # fmt: skip
    return JobSize.model_validate(told | changes)


def test_what_a_step_takes_stands_beside_each_number(capsys: pytest.CaptureFixture[str]) -> None:
    """With how far the measurements were apart; a dash where nothing was measured, or by an older server."""
    old = size(2, 4, why="lent", text="lends 2 of 2 GPUs that job_2 waits for").model_dump(mode="json")
    del old["step_s"], old["noise"]
    print_table([size(4, None, step_s=0.21345, noise=0.0213), JobSize.model_validate(old)])
    heading, first, second = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert heading[-3:] == ["GPUS", "STEP", "WHY"]
    assert first[-6:] == ["4", "0.213", "s", "±2%", "as", "asked"]
    assert "-" in second and "job_2" in second


def test_nothing_is_said_of_a_job_that_kept_its_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([size(4, None, step_s=1.0)])
    assert capsys.readouterr().out == ""
