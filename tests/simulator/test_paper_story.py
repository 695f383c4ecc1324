"""The paper's two scalers at work: a job's story, what the literal algorithms do to some jobs, and what mends it."""

from __future__ import annotations

import pytest

from app.core.demand import MOST_PRESSURE
from app.core.model.node import Tier
from app.core.model.plan import ActionKind
from app.simulator.engine import Stuck
from tests.simulator.scenarios import HOUR_MS, SECOND_MS, market, simulate, task

PAPER, DRAIN = "allpass-paper", "allpass-drain"
HOUR_S = HOUR_MS / 1000
ON = market(Tier.SERVERLESS, Tier.MARKETPLACE)


def test_the_story_of_a_job() -> None:
    """It starts serverless, F falls while nothing presses, it saves and waits; its deadline presses, a node comes."""
    seen = simulate(PAPER, task("a", 2000, due_s=5000), on=ON)
    assert seen.course() == [
        (0, "start"),  # at once
        (294, "demote"),  # F fell by 2 s at each of the five ticks since: 290 s after it began, it is used up
        (3240, "provision"),  # the first tick less than 30 min before its deadline
        (3276, "assign"),
    ]
    budgets = dict(seen.signal("F_s"))
    assert [budgets[at_s] for at_s in (0, 60, 120, 180, 240)] == [298, 296, 294, 292, 290]
    pressures = dict(seen.signal("p"))
    assert pressures[3180] == 0.0
    assert pressures[3240] == MOST_PRESSURE
    assert budgets[3240] - budgets[3180] == 100
    assert pressures[3300] == pytest.approx(1710 / 1700)  # 1710 s of work, one node, 1700 s
    done = seen.outcome("a")
    assert (done.tiers, done.moves, done.missed) == ("sm", 1, True)
    assert done.finished_ms == (3276 + 42 + 1710) * SECOND_MS


def test_f_falls_while_nothing_runs() -> None:
    """By 2 s a minute, through an hour without any job: who comes then has less time on serverless."""
    seen = simulate(PAPER, task("a", 30), task("b", 2000, at_s=3_600, due_s=5000), on=ON)
    budgets = dict(seen.signal("F_s"))
    assert budgets[3_540] - budgets[60] == -2 * 58
    assert next(at_s for at_s, _ in seen.of(ActionKind.DEMOTE)) - 3_600 < 294


def test_two_jobs_one_node() -> None:
    """Where one node does the work that is due, the earlier deadline has it first and the later one has it next."""
    jobs = task("a", 700, due_s=1_500), task("b", 700, due_s=1_700)
    seen = simulate(PAPER, *jobs, task("now", 300, due_s=1_790), on=ON)
    first = [who for _, who in seen.of(ActionKind.ASSIGN)]
    assert first == sorted(first)
    assert seen.outcome("a").finished_ms < seen.outcome("b").finished_ms


def test_a_long_job_waits_until_its_deadline_is_near() -> None:
    """Literal: ten hours of work, due in thirty, stand still for more than a day. Drained: hardly at all."""
    job = task("a", 10 * HOUR_S, due_s=30 * HOUR_S)
    literal, drained = (simulate(name, job, on=ON).outcome("a") for name in (PAPER, DRAIN))
    assert literal.wait_ms > 28 * HOUR_MS
    assert literal.missed
    assert drained.wait_ms < 0.05 * HOUR_MS
    assert not drained.missed


def test_an_overdue_job_rents_twenty_nodes() -> None:
    """Ten hours of work due at once ask for twenty nodes, of which one is used, and none goes back while p > 1."""
    seen = simulate(PAPER, task("a", 10 * HOUR_S, due_s=60), on=ON)
    assert seen.of(ActionKind.PROVISION) == [(60, "a")] * 20
    assert len(seen.of(ActionKind.ASSIGN)) == 1
    calm_s = min(at_s for at_s, p in seen.signal("p") if p <= 1)
    assert calm_s > 34_000
    assert {at_s for at_s, _ in seen.of(ActionKind.RELEASE)} == {calm_s}
    assert seen.result.cost_usd > 15 * seen.outcome("a").cost_usd


def test_a_short_window_presses_for_ever() -> None:
    """Two late jobs of 14 min and one node: p is far above 1, half an hour has room for both, and so F climbs."""
    first, second = (task(name, 840, due_s=1) for name in ("a", "b"))
    seen = simulate(PAPER, first, second, on=ON)
    assert len(seen.of(ActionKind.PROVISION)) == 1
    pressed = [at_s for at_s, p in seen.signal("p") if p > 1.1]
    assert len(pressed) >= 14
    budgets = dict(seen.signal("F_s"))
    course = [budgets[at_s] for at_s in pressed]
    assert course == sorted(course)
    assert course[-1] > 1_000
    assert {one.tiers for one in seen.result.outcomes} == {"s"}  # F outran them: they stayed on the dear tier
    assert seen.result.bills["vast"] > 0  # and paid for the node that neither used


def test_a_node_too_small_for_all_that_wait_counts() -> None:
    """Literal: for 200 GPU-seconds an idle node of one GPU is enough, so that a job of two waits for ever."""
    jobs = task("small", 2_000, due_s=5_000), task("large", 390, due_s=5_400, gpus=2)
    with pytest.raises(Stuck, match="1 jobs wait"):
        simulate(PAPER, *jobs, on=ON)
    assert not simulate(DRAIN, *jobs, on=ON).outcome("large").missed
