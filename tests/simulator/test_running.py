"""From options to results: means over seeds, the same side by side, the bound, and what a simulation looked like."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from app.core.model.node import Tier
from app.core.policies import policy_names
from app.errors import InvalidInput
from app.simulator import dynamics, process_pool, running
from app.simulator.options import Options
from app.simulator.running import JobsNeverEnd, SimulationRequest, Variant, mean_figures, play, simulate
from app.simulator.traces.job import Trace, TraceJob
from app.simulator.tuning import Tuning
from tests.simulator.small import small_trace

NAMES = {
    "mean_jct_s", "p50_jct_s", "p90_jct_s", "p99_jct_s", "share_within_10_min", "mean_queue_s", "mean_move_s",
    "mean_wait_s", "share_serverless", "deadline_misses", "deadline_miss_share", "mean_tardiness_s", "cost_usd",
    "cost_by_provider_usd", "peak_nodes",
}  # fmt: skip


def test_every_policy_simulates_and_has_every_figure() -> None:
    """All policies by name, and the bound; none is cheaper than the bound by more than its billing units."""
    found = simulate(small_trace(), [*policy_names(), "clairvoyant"])
    assert (found["trace"], found["jobs"]) == ("small", 20)
    assert list(found["policies"]) == [*policy_names(), "clairvoyant"]
    least = found["policies"]["clairvoyant"]
    for figures in found["policies"].values():
        assert figures.keys() >= NAMES
        assert figures["cost_usd"] >= least["cost_usd"] - 1e-4
        assert figures["mean_jct_s"] >= least["mean_jct_s"]
        assert figures["mean_wait_s"] == pytest.approx(figures["mean_queue_s"] + figures["mean_move_s"])
        assert figures["cost_usd"] == pytest.approx(sum(figures["cost_by_provider_usd"].values()))


def test_figures_are_means_over_the_seeds() -> None:
    """Three seeds together give the mean of the three alone; each alone gives the same when asked again."""
    alone = [simulate(small_trace(), ["allpass"], seeds=[seed])["policies"]["allpass"] for seed in (3, 4, 5)]
    together = simulate(small_trace(), ["allpass"], seeds=[3, 4, 5])["policies"]["allpass"]
    assert len({one["mean_jct_s"] for one in alone}) == 3
    for name in ("mean_jct_s", "cost_usd", "p50_jct_s"):
        assert together[name] == pytest.approx(sum(one[name] for one in alone) / 3)
    assert simulate(small_trace(), ["allpass"], seeds=[4])["policies"]["allpass"] == alone[1]


def test_a_provider_that_one_seed_did_without_counts_as_nothing_there() -> None:
    """The mean of costs by provider is over all seeds."""
    several: list[dict[str, Any]] = [{"cost": {"modal": 3.0}}, {"cost": {"vast": 1.0, "modal": 1.0}}]
    assert mean_figures(several) == {"cost": {"modal": 2.0, "vast": 0.5}}


def test_side_by_side_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of their own, the results and their order do not change, and no process is left."""
    one_by_one = play(small_trace(), _variants("allpass", "modal-only"), Options(), (0, 1), keeps_course=True)
    told: list[tuple[float, int]] = []
    monkeypatch.setattr(running, "WORTH_A_PROCESS", 0)
    monkeypatch.setattr(process_pool, "usual_processes", lambda: 2)
    together = play(
        small_trace(),
        _variants("allpass", "modal-only"),
        Options(),
        (0, 1),
        lambda done, total: told.append((done, total)),
        keeps_course=True,
    )
    assert together == one_by_one
    assert told[-1] == (4.0, 4)
    assert multiprocessing.active_children() == []


def test_a_failure_in_another_process_is_raised_here() -> None:
    """With its type and its words; nothing is left behind."""
    questions = [
        SimulationRequest(small_trace(4), Variant.plain("sjf"), Options(serverful_limit=limit), 0)
        for limit in (None, 0)
    ]
    with pytest.raises(JobsNeverEnd, match=r"4 jobs wait for something that never comes.*--serverful-limit"):
        process_pool.answer_all(running.answer, questions, 2, lambda place, share: None)
    assert multiprocessing.active_children() == []


def test_jobs_that_never_end_are_given_up_soon() -> None:
    """An hour after the last deadline without a machine, also by a policy that looks again every 15 seconds."""
    options = Options(serverful_limit=0, deadlines="2-2")
    last_deadline_ms = max(task.deadline_ms for task in options.tasks(small_trace(4), 0))
    with pytest.raises(JobsNeverEnd) as told:
        simulate(small_trace(4), ["hpa"], options)
    (at_ms,) = re.findall(r"never comes, at (\d+) ms", told.value.message)
    assert last_deadline_ms < int(at_ms) <= last_deadline_ms + 3_700_000


def _dies(question: int, tell: Callable[[float], None]) -> int:
    tell(0.5)
    if question == 2:
        os._exit(1)
    return question


def test_a_process_that_dies_is_told() -> None:
    """Not waited for until the end of days."""
    with pytest.raises(process_pool.WorkersLost, match="ended from outside"):
        process_pool.answer_all(_dies, [1, 2, 3], 2, lambda place, share: None)
    assert multiprocessing.active_children() == []


def test_progress_rises_to_the_end() -> None:
    """Within a simulation too, once it takes many decisions."""
    told: list[float] = []
    trace = Trace.of("long", [TraceJob(f"j{n:03d}", 30.0 * n, 40.0, 1) for n in range(400)])
    simulate(trace, ["modal-only", "clairvoyant"], progress=lambda done, total: told.append(done / total))
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert any(0 < share < 0.5 for share in told)


def test_the_bound_is_what_the_work_costs() -> None:
    """Work times GPUs times the lowest price, and every job ends as soon as it can; no deadline is missed."""
    trace = Trace.of("two", [TraceJob("a", 0, 3600, 4), TraceJob("b", 1800, 3600, 1)])
    one = simulate(trace, ["clairvoyant"])["policies"]["clairvoyant"]
    assert one["cost_usd"] == pytest.approx(2 * 0.74)
    assert (one["mean_jct_s"], one["mean_wait_s"], one["deadline_misses"], one["peak_nodes"]) == (3600, 0, 0, 2)
    four = simulate(trace, ["clairvoyant"], Options().having("gpus", "trace"))["policies"]["clairvoyant"]
    assert four["cost_by_provider_usd"] == {"vast": pytest.approx(5 * 0.74)}
    cheap = Options().having("market.prices.conventional", "0.5")
    assert simulate(trace, ["clairvoyant"], cheap)["policies"]["clairvoyant"]["cost_by_provider_usd"] == {
        "lambda": pytest.approx(2 * 0.5)
    }


def test_the_bound_is_for_flat_prices_only() -> None:
    """With moving prices it would be none, and says so."""
    with pytest.raises(InvalidInput, match=r"clairvoyant.*flat prices only.*the market is calm"):
        simulate(small_trace(), ["clairvoyant"], Options(market="calm"))


def test_the_bound_is_for_jobs_that_are_trained_alone() -> None:
    """Two that merge may take less work than each alone: where they may, it is refused, and else it bounds."""
    alone = Options().having("merge-able", "0.8")
    with pytest.raises(InvalidInput, match=r"clairvoyant.*trained alone only.*--merging off"):
        simulate(small_trace(), ["clairvoyant"], alone.having("merging", "on"))
    found = simulate(small_trace(), ["allpass", "clairvoyant"], alone)["policies"]
    assert found["clairvoyant"]["cost_usd"] <= found["allpass"]["cost_usd"]
    simulate(small_trace(), ["clairvoyant"], Options().having("merging", "on"))  # nobody could


def test_a_policy_that_is_not_there() -> None:
    """The error has the nearest name and all others."""
    with pytest.raises(InvalidInput, match=r"'alpass' is not known; the nearest is allpass; there are .*clairvoyant"):
        simulate(small_trace(), ["alpass"])


def test_limits_of_the_market_and_failures_count() -> None:
    """With one marketplace machine to be had others are rented elsewhere; machines that fail make jobs take longer."""
    free = simulate(small_trace(), ["cheapest-first"])["policies"]["cheapest-first"]
    tight = Options().having("market.limits.marketplace", "1")
    limited = simulate(small_trace(), ["cheapest-first"], tight)["policies"]["cheapest-first"]
    assert set(free["cost_by_provider_usd"]) == {"vast"}
    assert set(limited["cost_by_provider_usd"]) == {"lambda", "vast"}
    frail = Options().having("market.mean_life_s.marketplace", "900")
    failing = simulate(small_trace(), ["cheapest-first"], frail)["policies"]["cheapest-first"]
    assert failing["mean_jct_s"] > free["mean_jct_s"] * 1.05


def test_a_variant_has_settings_of_its_own() -> None:
    """They go over the options', for that policy alone."""
    early = Variant("early", "fixed-threshold", Tuning().having("serverless_budget_ms", 60_000))
    late = Variant("late", "fixed-threshold")
    options = Options().having("serverless_budget_ms", "100000000")
    found = running.summary(small_trace(), play(small_trace(), [early, late], options, (0,)))["policies"]
    assert found["late"]["share_serverless"] == 1.0
    assert found["early"]["share_serverless"] == pytest.approx(0.5)


def test_the_course_of_a_simulation() -> None:
    """Samples rise in time; machines are on the tiers that the policy rents; F moves, stays or is not there."""
    drain, modal, fixed = (
        one.course
        for one in play(
            small_trace(),
            _variants("allpass-drain", "modal-only", "fixed-threshold"),
            Options(),
            (0,),
            keeps_course=True,
        )
    )
    assert drain is not None
    assert modal is not None
    assert fixed is not None
    for one in (drain, modal, fixed):
        lengths = {len(one.times_s), len(one.queue), len(one.budget_s), *(len(two) for two in one.machines.values())}
        assert len(lengths) == 1
        assert one.times_s == sorted(set(one.times_s))
        assert one.times_s[0] == 0
        assert max(one.machines[Tier.SERVERLESS]) > 0
    assert len(set(drain.budget_s)) > 1
    assert set(modal.budget_s) == {None}
    assert set(fixed.budget_s) == {300.0}
    assert max(modal.machines[Tier.MARKETPLACE]) == 0 < max(fixed.machines[Tier.MARKETPLACE])
    assert {(tier, usd) for _, tier, usd in modal.rents} == {(Tier.SERVERLESS, 2.1)}
    assert {(tier, usd) for _, tier, usd in fixed.rents} == {(Tier.SERVERLESS, 2.1), (Tier.MARKETPLACE, 0.74)}
    assert len(modal.rents) == 20


def test_many_rents_are_thinned_out_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept stays in bounds and covers all of the time."""
    monkeypatch.setattr(dynamics, "MOST_RENTS", 50)
    trace = Trace.of("many", [TraceJob(f"j{n:03d}", 10.0 * n, 5.0, 1) for n in range(400)])
    (played,) = play(trace, _variants("modal-only"), Options(), (0,), keeps_course=True)
    assert played.course is not None
    times = [at for at, _, _ in played.course.rents]
    assert 25 <= len(times) <= 50
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) <= 4 * min(gaps)
    assert times[-1] > 3800


def test_only_the_first_seed_is_kept_job_by_job() -> None:
    """The others give their figures and no more."""
    played = play(small_trace(), _variants("modal-only"), replace(Options(), startup="mean"), (0, 1), keeps_jobs=True)
    assert [len(one.outcomes) for one in played] == [20, 0]


def _variants(*names: str) -> list[Variant]:
    return [Variant.plain(name) for name in names]
