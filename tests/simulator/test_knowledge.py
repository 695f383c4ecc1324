"""What is known of run times: its errors, their kinds, and what the policy sees of them while a job runs."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.simulator.knowledge import REFINED_AT, Knowledge, Mistakes
from tests.simulator.scenarios import simulate, task
from tests.simulator.test_preparing import prepared, trace


@pytest.mark.parametrize(
    ("text", "knowledge"),
    [
        ("submit:1.5", Knowledge(error=1.5)),
        ("submit:ln0.5", Knowledge(error=0.0, sigma=0.5)),
        ("after:60:ln0.5", Knowledge(after_s=60.0, error=0.0, sigma=0.5)),
        ("submit:0.2,bias=2", Knowledge(error=0.2, bias=2.0)),
        ("submit:0.2,wrong=0.1,refined", Knowledge(error=0.2, wrong=0.1, refined=True)),
        ("submit:ln1,refined,bias=0.5", Knowledge(error=0.0, sigma=1.0, bias=0.5, refined=True)),
    ],
)
def test_errors_in_words(text: str, knowledge: Knowledge) -> None:
    assert Knowledge.parse(text) == knowledge


@pytest.mark.parametrize(
    "text",
    [
        *("none,bias=2", "submit:0.2,", "submit:0.2,bias", "submit:0.2,bias=0", "submit:0.2,bias=-1"),
        *("submit:0.2,wrong=1.1", "submit:0.2,wrong=x", "submit:0.2,better", "submit:0.2,bias=1,bias=2"),
        *("submit:ln", "submit:ln9", "submit:lnx", "submit:1e9", "submit:inf", "submit:0_2", "submit:0.2,refined=1"),
    ],
)
def test_what_is_no_knowledge_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"bias=2 .* wrong=0\.1 .* refined") as refused:
        Knowledge.parse(text)
    assert repr(text) in str(refused.value)


def factors(text: str, many: int = 4000) -> list[float]:
    chance = random.Random(1)
    return [Knowledge.parse(text).factor(chance) for _ in range(many)]


def test_errors_of_more_than_all_of_it_stay_above_nothing() -> None:
    """Twice too long is as likely as twice too short; the largest error is the one asked for."""
    drawn = factors("submit:3")
    assert 0.25 <= min(drawn) < 0.27
    assert 3.8 < max(drawn) <= 4.0
    assert statistics.median(drawn) == pytest.approx(1, rel=0.1)


def test_log_normal_errors_have_their_deviation() -> None:
    logs = [math.log(factor) for factor in factors("submit:ln0.7")]
    assert statistics.mean(logs) == pytest.approx(0, abs=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.7, rel=0.05)


def test_a_bias_moves_all() -> None:
    assert factors("submit:0.2,bias=3") == pytest.approx([3 * factor for factor in factors("submit:0.2")])


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6), st.one_of(st.none(), st.floats(0, 5)), st.integers(0, 99))
def test_no_prediction_is_negative_or_without_end(error: float, bias: float, sigma: float | None, seed: int) -> None:
    factor = Knowledge(error=error, bias=bias, sigma=sigma).factor(random.Random(seed))
    assert 0 < factor < math.inf


def test_a_share_of_jobs_has_the_run_time_of_another() -> None:
    """The others are exact; who is wrong stays so, whatever else is asked for."""
    exact = prepared(trace(many=400), knowledge=Knowledge.parse("submit:0,wrong=0.25"))
    wrong = {one.job_id for one in exact if one.predicted_ms != one.work_ms}
    assert 0.2 < len(wrong) / 400 < 0.3
    assert {one.predicted_ms for one in exact} <= {one.work_ms for one in exact}
    noisy = prepared(trace(many=400), knowledge=Knowledge.parse("submit:0,wrong=0.25,bias=2"))
    assert {one.job_id for one in noisy if one.predicted_ms != 2 * one.work_ms} == wrong


def test_nobody_is_wrong_without_being_asked() -> None:
    assert Mistakes(0.0, [1, 2, 3]).stands_for(7) == 7


def predictions(policy: str, one: Any) -> list[tuple[float, float | None]]:
    """What the policy was told of the one job, when it changed: (second, predicted seconds)."""
    seen = simulate(policy, one)
    found: list[tuple[float, float | None]] = []
    for snapshot, _, _ in seen.snapshots:
        for job in snapshot.jobs:
            told = None if job.total_run_ms is None else job.total_run_ms / 1000
            if not found or found[-1][1] != told:
                found.append((snapshot.now_ms / 1000, told))
    return found


def test_a_prediction_gets_better_as_the_job_runs() -> None:
    """Four times too long at first; after 10, 30 and 60 % of its work the error's logarithm is what is left."""
    seen = predictions("modal-only", task("a", 1000, predicted_ms=4_000_000, refined=True))
    assert [told for _, told in seen] == [4000.0, *(pytest.approx(1000 * 4 ** (1 - share)) for share in REFINED_AT)]
    assert [at_s - 4 for at_s, _ in seen[1:]] == [1000 * share for share in REFINED_AT]


def test_without_being_asked_it_stays() -> None:
    assert predictions("modal-only", task("a", 1000, predicted_ms=4_000_000)) == [(0.0, 4000.0)]


def test_what_is_known_late_is_refined_from_then_on() -> None:
    """Nothing is known before its time, refined or not."""
    seen = predictions("modal-only", task("a", 1000, predicted_ms=2_000_000, known_after_ms=400_000, refined=True))
    assert seen[0] == (0.0, None)
    assert seen[1] == (404.0, pytest.approx(1000 * 2**0.7))
    assert len(seen) == 3


def test_refinement_goes_on_after_a_move() -> None:
    """Each step comes once, whichever machine the job is on."""
    seen = predictions("allpass", task("a", 20_000, predicted_ms=60_000_000, refined=True))
    assert [told for _, told in seen] == [60_000.0, *(pytest.approx(20_000 * 3 ** (1 - at)) for at in REFINED_AT)]
