"""The parts of a rehearsal that need no machine: its ceiling, its report, its doubts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.wire.usage import Offer
from app.core.model.finding import wrong
from app.errors import InvalidInput
from app.smoke.doubts import DOUBTS, settle
from app.smoke.report import Report
from app.smoke.spending import plan_spending


def offer(price_per_hour: int, *, gpus: int = 1, arm: bool = False) -> Offer:
    return Offer(
        provider="vast", offer_id=str(price_per_hour), tier="marketplace", gpu_type="T4", gpu_count=gpus,
        gpu_memory_bytes=1 << 34, cpus=4, memory_bytes=1 << 34, region="here", price_per_hour=price_per_hour,
        price_per_gpu_hour=price_per_hour, startup_ms=1, seen_at=datetime.now(UTC),
        cpu_architecture="arm64" if arm else "x86_64",
    )  # fmt: skip


@given(
    st.lists(st.integers(1, 40_000_000), min_size=1, max_size=8),
    st.integers(10_000, 10_000_000),
    st.integers(120, 14_400),
)
def test_what_is_agreed_to_cannot_cost_more_than_the_ceiling(prices: list[int], most: int, seconds: int) -> None:
    """However long it takes: price x time, and the job's own limit, stay below it; what is refused names enough."""
    offers = [offer(price) for price in prices]
    try:
        spending = plan_spending("vast", offers, most_micros=most, most_s=seconds)
    except InvalidInput as error:
        named = float(error.message.rpartition("--most-dollars ")[2].partition(",")[0])
        enough = plan_spending("vast", offers, most_micros=round((named + 0.01) * 1e6), most_s=seconds)
        assert enough.offer.price_per_hour == min(prices)
        return
    assert spending.offer.price_per_hour == min(prices)
    assert spending.foreseen_micros <= spending.job_micros + 1
    assert spending.job_micros < most
    assert spending.most_hourly_micros * seconds <= spending.job_micros * 3600


def test_only_machines_with_one_usual_gpu_are_taken() -> None:
    """The cheapest offer may be one that no small job is placed on."""
    offers = [offer(1, gpus=8), offer(2, arm=True), offer(300_000)]
    assert plan_spending("vast", offers, most_micros=2_000_000, most_s=1800).offer.price_per_hour == 300_000
    with pytest.raises(InvalidInput, match="no machine with one GPU"):
        plan_spending("vast", offers[:2], most_micros=2_000_000, most_s=1800)


def test_a_report_of_a_rehearsal_that_broke_off_has_what_there_was(tmp_path: Path) -> None:
    """Both files; no secret in either, wherever it came from; a bar in a message breaks no table."""
    report = Report("vast", "2030-01-01T00:00:00Z", "0.1.0", 2_000_000)
    report.note(1.5, "rent a | machine with sesame-key")
    report.findings = [wrong("account", "x", "the key sesame-key is refused", "mend it")]
    report.looks = [{"gpu": "T4", "deep": [{"log": "sesame-key"}]}]
    report.left = ["node_1"]
    path = report.write(tmp_path / "new", ["sesame-key"])
    told = json.loads(path.with_suffix(".json").read_text())
    text = path.read_text()
    assert "sesame-key" not in text + json.dumps(told)
    assert "END BY HAND: node_1" in text
    assert "| 1.5 | rent a / machine with [hidden] |  |" in text
    assert told["outcome"] == "not finished"


@pytest.mark.parametrize("provider", ["modal", "vast", "lambda"])
def test_what_a_run_does_not_show_stays_open(provider: str) -> None:
    """No answer is made up; each question that is not answered with yes has a way out."""
    settled = settle(provider, {})
    assert len(settled) == len(DOUBTS[provider]) >= 2
    assert {one.answer for one in settled} == {"open"}
    assert all(one.fallback for one in settled)


def test_answers_are_read_from_what_the_machine_said() -> None:
    """Yes needs no way out; no does."""
    told = {one.question[:20]: one for one in settle("lambda", {"pip": False, "has_gpu": True})}
    assert sorted(one.answer for one in told.values()) == ["no", "yes"]
    assert [bool(one.fallback) for one in sorted(told.values(), key=lambda one: one.answer)] == [True, False]
