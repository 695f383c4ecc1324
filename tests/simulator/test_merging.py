"""Merged jobs on simulated machines: by the clock, with splits and failures, and as a workload over a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from allpass.cli import main as cli
from app.core.merging.transfer import GainLine, alignment_of
from app.core.model.merge import MergeMode
from app.core.model.node import Tier
from app.core.model.plan import ActionKind
from app.core.policy import PolicyConfig
from app.simulator import merging
from app.simulator.mergeable import Trainee, looks_fruitless, true_gain, with_trainees
from app.simulator.merging import MergingSimulation
from app.simulator.options import Options
from app.simulator.running import simulate as played
from app.simulator.scenario import Task
from app.simulator.traces.generating import generate
from tests.simulator.scenarios import HOUR_MS, Seen, config, market, simulate, task

ON = config(merging=True)
# As after many merges of jobs as alike as these: a half is gained.
HELPS = GainLine(prior_count=1e-6, count=50, sum_score=50.0, sum_gain=25.0, sum_square=50.0, sum_product=25.0)


@pytest.fixture(autouse=True)
def exact_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair gains a half, and the simulation begins with that knowledge."""
    set_gain(monkeypatch, 0.5)


def set_gain(monkeypatch: pytest.MonkeyPatch, gain: float) -> None:
    monkeypatch.setattr(merging, "true_gain", lambda *_: gain)
    for name in ("IN_TURN", "TOGETHER"):
        monkeypatch.setattr(f"app.core.board.{name}", HELPS)


def trainee(name: str, work_s: float, **changes: Any) -> Trainee:
    values: dict[str, Any] = {"task": (1.0,), "pull": (1.0, 2.0, 3.0), "overhead": 0.1, "epochs": 10, "gpus": 1}
    course = {"top": 2.0, "left_share": 0.1, "floor": 0.5}
    return Trainee(seed=name, base="base-a", steps=int(work_s), **course, **(values | changes))


def mergeable(name: str, work_s: float, **changes: Any) -> Task:
    made = trainee(name, work_s, **changes.pop("trainee", {}))
    return task(name, work_s, due_s=1_000_000, trainee=made, **changes)


def merge(*tasks: Task, using: PolicyConfig = ON, **changes: Any) -> Seen:
    return simulate("allpass", *tasks, using=using, kind=MergingSimulation, **changes)


def test_together_by_the_clock() -> None:
    """Two jobs of an hour that come as one is profiled: 2 x 0.55 h on two GPUs, a half quicker, and both end then."""
    rules = replace(ON.rules, merge_wait_share=0.0)
    pair = mergeable("a", 3600), mergeable("b", 3600)
    # Both wait for their nodes, 36 s, and are profiled by then.
    seen = merge(*pair, using=replace(ON, rules=rules))
    assert [at_s for at_s, _ in seen.of(ActionKind.MERGE)] == [24.0]
    a, b = seen.outcome("a"), seen.outcome("b")
    assert a.finished_ms == b.finished_ms
    assert a.merged == b.merged == MergeMode.TOGETHER
    assert a.work_ms == b.work_ms == 2640_000
    assert a.jct_ms < 3600_000
    assert a.cost_usd == pytest.approx(b.cost_usd)
    alone = simulate("allpass", *pair)
    assert seen.result.cost_usd < alone.result.cost_usd


def test_in_turn_in_the_warm_process() -> None:
    """A job that comes alone looks at its task as it begins, which takes it 20 s. So a long one that comes as it ends
    goes on in its place two seconds later, and needs a third less time."""
    first, long = mergeable("a", 3600), mergeable("b", 36_000, at_s=3000)
    seen = merge(first, long, using=replace(ON, rules=replace(ON.rules, merge_wait_share=0.0)))
    assert [who for _, who in seen.of(ActionKind.MERGE)] == ["a"]
    a, b = seen.outcome("a"), seen.outcome("b")
    assert (a.merged, b.merged) == (MergeMode.IN_TURN, MergeMode.IN_TURN)
    assert (a.work_ms, a.tiers[:1]) == (3620_000, simulate("allpass", first).outcome("a").tiers[:1])
    assert b.started_ms == a.finished_ms + ON.rules.merge_switch_ms
    assert b.work_ms == 24_000_000
    assert b.finished_ms == b.started_ms + 24_000_000
    assert b.moves == 0


def test_a_short_job_is_not_held_up_by_a_look() -> None:
    """It takes as long as without merging, and nobody can go on from it."""
    short, long = mergeable("a", 199), mergeable("b", 36_000, at_s=100)
    rules = replace(ON.rules, merge_wait_share=0.0)
    seen = merge(short, long, using=replace(ON, rules=rules))
    assert seen.of(ActionKind.MERGE) == []
    assert seen.outcome("a").work_ms == 199_000


def test_a_merge_in_vain_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that hinder each other are split after two epochs, and each goes on with what it has; the loss is learned
    from, so that the next such jobs are not merged."""
    set_gain(monkeypatch, -0.3)
    rules = replace(ON.rules, merge_wait_share=0.0)
    seen = merge(mergeable("a", 3600), mergeable("b", 3600), using=replace(ON, rules=rules))
    assert len(seen.of(ActionKind.MERGE)) == 1  # and not again
    ((at_s, _),) = seen.of(ActionKind.SPLIT)
    work_s = 2 * 3600 * 0.55 / 0.7
    started_s = seen.outcome("a").started_ms or 0
    assert at_s == pytest.approx(started_s / 1000 + 0.2 * work_s, abs=1)
    for name in ("a", "b"):
        done = seen.outcome(name)
        assert (done.merged, done.splits) == ("", 1)
        # A fifth was done merged; the rest alone, after one or two moves and the start of a machine.
        assert at_s + 0.8 * 3600 + 84 <= done.finished_ms / 1000 <= at_s + 0.8 * 3600 + 2 * 84 + 40
    assert seen.snapshots[-1][0].gains_together.count == HELPS.count + 1
    assert seen.snapshots[-1][0].merges == ()


def test_a_lost_node_restores_the_merge() -> None:
    """When the machine of a merged pair fails, both wait, and go on as one from their last checkpoint."""
    rules = replace(ON.rules, merge_wait_share=0.0)
    pair = mergeable("a", 36_000), mergeable("b", 36_000)
    seen = merge(*pair, using=replace(ON, rules=rules), on=failing(6 * HOUR_MS), seed=2)
    a, b = seen.outcome("a"), seen.outcome("b")
    assert a.faults > 0
    assert a.merged == b.merged == MergeMode.TOGETHER
    assert a.finished_ms == b.finished_ms
    assert len(seen.of(ActionKind.MERGE)) == 1
    assert seen.of(ActionKind.SPLIT) == []


def failing(mean_life_ms: int) -> Any:
    return market(mean_life_s={Tier.MARKETPLACE: mean_life_ms / 1000})


def test_nothing_changes_without_merging() -> None:
    """Jobs that could be merged and are not have the same course as plain ones."""
    plain = [task(name, work_s, at_s=at_s) for name, work_s, at_s in (("a", 900, 0), ("b", 2000, 5), ("c", 30, 60))]
    able = [replace(one, trainee=trainee(one.job_id, one.work_ms / 1000)) for one in plain]
    assert merge(*able, using=config()).result == simulate("allpass", *plain).result


# The generator


def test_the_generator_looks_like_the_published_figures() -> None:
    """Scores and true gains correlate as in Ymir's Table 2 (0.44 to 0.79), a third of all pairs hinder each other, and
    the monitor is right about the clear ones."""
    tasks = with_trainees(tuple(task(f"job-{n}", 3600) for n in range(150)), 0.8, 0)
    able = [one.trainee for one in tasks if one.trainee is not None]
    assert 0.7 < len(able) / 150 < 0.9
    pairs = [(one, other) for place, one in enumerate(able) for other in able[:place] if one.base == other.base]
    gains = np.array([true_gain(*pair) for pair in pairs])
    scores = np.array([alignment_of(one.pull, other.pull) for one, other in pairs])
    assert 0.44 < np.corrcoef(scores, gains)[0, 1] < 0.79
    assert 0.2 < (gains < 0).mean() < 0.45
    assert all(
        looks_fruitless(gain, *pair) == (gain < 0) for gain, pair in zip(gains, pairs, strict=True) if abs(gain) > 0.2
    )


def test_a_larger_share_keeps_the_smaller_ones_jobs() -> None:
    """The same seed draws the same jobs; a share of 0 draws none, of 1 all."""
    tasks = tuple(task(f"job-{n}", 3600) for n in range(60))
    half, most = with_trainees(tasks, 0.5, 1), with_trainees(tasks, 0.9, 1)
    assert with_trainees(tasks, 0.5, 1) == half
    assert all(one.trainee == other.trainee for one, other in zip(half, most, strict=True) if one.trainee is not None)
    assert with_trainees(tasks, 0.0, 1) == tasks
    assert all(one.trainee is not None for one in with_trainees(tasks, 1.0, 1))
    assert half != with_trainees(tasks, 0.5, 2)


@pytest.mark.parametrize("limit", ["none", "3"])
def test_drawn_workloads_end_and_keep_the_rules(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Whole workloads, failures of machines and wrong predictions included: every job ends once, every board and plan
    keeps the rules, and nobody is merged twice."""
    monkeypatch.undo()
    options = Options().having("merge-able", "1").having("merging", "on").having("serverful-limit", limit)
    options = options.having("market.mean_life_s.marketplace", "20000").having("merge_wait_share", "0.05")
    scenario = options.scenario(generate("seren", 30, 3), 3, options.config())
    long = tuple(
        replace(one, work_ms=one.work_ms * 8, predicted_ms=(one.predicted_ms or 0) * 8) for one in scenario.tasks
    )
    tasks = with_trainees(tuple(replace(one, deadline_ms=one.submit_ms + 30 * one.work_ms) for one in long), 1.0, 3)
    seen = merge(*tasks, using=options.config(), on=scenario.market)
    assert sorted(one.job_id for one in seen.result.outcomes) == sorted(one.job_id for one in tasks)
    assert all(one.finished_ms > one.submit_ms and one.cost_usd > 0 for one in seen.result.outcomes)
    merges = seen.of(ActionKind.MERGE)
    assert merges
    assert sum(one.splits for one in seen.result.outcomes) == 2 * len(seen.of(ActionKind.SPLIT))
    costs = sum(one.cost_usd for one in seen.result.outcomes)
    assert costs < 1.001 * seen.result.cost_usd + 0.05


# The command


def test_figures_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--sweep merging=off,on` shows both, with fairness and how many were merged, within 100 columns; a share that is
    none, and a word that is neither on nor off, are refused."""
    monkeypatch.undo()
    words = ["--policy", "allpass", "--merge-able", "0.8", "--most-jobs", "40"]
    shown = CliRunner().invoke(cli.app, ["simulate", *words, "--sweep", "merging=off,on"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "merge-able 0.8" in shown.stdout
    (heading,) = [line for line in shown.stdout.splitlines() if line.startswith("MERGING")]
    assert heading.split()[-2:] == ["FAIR", "MERGED"]
    assert max(len(line) for line in shown.stdout.splitlines()) <= 100
    for name, bad, told in (("merge-able", "1.5", "is no share of the jobs"), ("merging", "yes", "none of on, off")):
        refused = CliRunner().invoke(cli.app, ["simulate", f"--{name}", bad])
        assert refused.exit_code != 0
        assert told in " ".join(refused.stderr.split())


def test_merging_is_off_unless_asked_for() -> None:
    """The figures of the same jobs with merging off are those of jobs that cannot be merged."""
    trace = generate("seren", 40, 5)
    able = played(trace, ["allpass"], Options().having("merge-able", "1"))
    assert able == played(trace, ["allpass"], Options())
    assert able["policies"]["allpass"]["merged"] == 0
