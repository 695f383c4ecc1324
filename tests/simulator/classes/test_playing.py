"""A pool with two classes: every job ends with its work done, guaranteed jobs evict, and what is counted adds up."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.eviction import EvictionRule
from app.simulator.classes.figures import figures_of, share_held
from app.simulator.classes.jobs import TwoClassJob, equal_sizes, nodes_for, two_classes
from app.simulator.classes.playing import TwoClassSetting, play_two_classes
from app.simulator.classes.running import SavingTimes, TwoClassRun
from app.simulator.traces.job import TraceJob

MINUTE_MS = 60_000
rules = st.sampled_from(list(EvictionRule))


def _job(
    job_id: str, minute: int, minutes: int, gpus: int = 8, *, spot: bool = False, saves: bool = False, parts: int = 1
) -> TwoClassJob:
    return TwoClassJob(job_id, minute * MINUTE_MS, minutes * MINUTE_MS, gpus, parts, spot, saves)


def _play(jobs: list[TwoClassJob], nodes: int = 1, rule: EvictionRule = EvictionRule.LOST_WORK) -> list[TwoClassRun]:
    return play_two_classes(jobs, TwoClassSetting(nodes, rule))


def _drawn(seed: int) -> list[TwoClassJob]:
    chance = Random(seed)
    return [
        _job(
            f"j{number}",
            chance.randrange(60),
            chance.randint(1, 90),
            chance.choice((1, 2, 4, 8)),
            spot=chance.random() < 0.5,
            saves=chance.random() < 0.5,
            parts=chance.choice((1, 1, 2)),
        )
        for number in range(20)
    ]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), rules, st.integers(2, 4))
def test_every_job_ends_with_its_work_done(seed: int, rule: EvictionRule, nodes: int) -> None:
    """Whoever is evicted under whatever rule: all end, none before its work can be done, guaranteed jobs are never
    evicted, and no GPU is given out twice (the pool itself raises then)."""
    for run in _play(_drawn(seed), nodes, rule):
        assert run.end_ms is not None
        assert run.first_start_ms is not None
        assert run.first_start_ms >= run.job.submit_ms
        assert run.end_ms - run.first_start_ms >= run.job.work_ms
        assert run.job.spot or (run.evictions, run.wasted_gpu_ms) == (0, 0)
        assert (run.wasted_gpu_ms > 0) == (run.evictions > 0)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), rules)
def test_a_seed_plays_the_same_again(seed: int, rule: EvictionRule) -> None:
    """The rule of chance too: its draws come from the setting's seed."""
    assert _play(_drawn(seed), 3, rule) == _play(_drawn(seed), 3, rule)


def test_a_save_within_the_grace_loses_nothing() -> None:
    """Evicted after 25 minutes: 13 s of saving and 30 s of restoring on eight GPUs are all that is wasted."""
    spot, guaranteed = _play([_job("s", 0, 60, spot=True, saves=True), _job("g", 25, 10)])
    assert spot.wasted_gpu_ms == 8 * 43_000
    assert guaranteed.first_start_ms == 25 * MINUTE_MS + 13_000
    assert spot.end_ms == 70 * MINUTE_MS + 43_000


def test_without_a_save_it_goes_back_to_its_checkpoint() -> None:
    """Five minutes since the checkpoint of minute 20 are lost, with the whole grace and the restore."""
    spot, guaranteed = _play([_job("s", 0, 60, spot=True), _job("g", 25, 10)])
    assert spot.wasted_gpu_ms == 8 * (5 * MINUTE_MS + 60_000 + 30_000)
    assert guaranteed.first_start_ms == 26 * MINUTE_MS


def test_whoever_is_nearly_done_is_let_go() -> None:
    """With less left than its grace it ends by itself, and no eviction is counted."""
    spot, guaranteed = _play([_job("s", 0, 26, spot=True), _job("g", 25, 10)])
    assert (spot.evictions, spot.wasted_gpu_ms, spot.end_ms) == (0, 0, 26 * MINUTE_MS)
    assert guaranteed.first_start_ms == 26 * MINUTE_MS


def test_what_was_freed_goes_to_whom_it_was_freed_for() -> None:
    """A spot job of one GPU that comes within the grace does not take what the guaranteed job waits for, though it
    would fit; it waits until the guaranteed one is done."""
    runs = _play([_job("s", 0, 60, 4, spot=True), _job("g", 25, 10), _job("late", 25, 1, 1, spot=True)])
    assert runs[1].first_start_ms == 26 * MINUTE_MS
    assert runs[2].first_start_ms == 36 * MINUTE_MS


def test_a_minimum_run_time_is_kept() -> None:
    """With an hour of it, the spot job is spared until it is done and the guaranteed job waits."""
    times = SavingTimes(minimum_run_ms=60 * MINUTE_MS)
    setting = TwoClassSetting(1, EvictionRule.LOST_WORK, times=times)
    spot, guaranteed = play_two_classes([_job("s", 0, 50, spot=True), _job("g", 25, 10)], setting)
    assert (spot.evictions, guaranteed.first_start_ms) == (0, 50 * MINUTE_MS)


def test_a_job_larger_than_the_pool_is_refused_and_no_jobs_are_no_trouble() -> None:
    """It would wait for ever."""
    with pytest.raises(ValueError, match="needs 3 of 2 nodes"):
        _play([_job("g", 0, 1, parts=3)], 2)
    assert _play([]) == []


def test_classes_are_drawn_alike_whatever_share_saves() -> None:
    """The same jobs are spot, and who saves at 30 % does at 60 %; none and all are possible."""
    trace = [TraceJob(f"j{number}", number, 60.0, 1 + number % 20) for number in range(400)]
    few, many = (two_classes(trace, 0.3, share, 7) for share in (0.3, 0.6))
    assert [job.spot for job in few] == [job.spot for job in many]
    assert all(b.saves for a, b in zip(few, many, strict=True) if a.saves)
    assert sum(job.saves for job in few) < sum(job.saves for job in many)
    assert 80 < sum(job.spot for job in few) < 160
    assert all(job.gpus >= one.gpus and job.part_gpus <= 8 for job, one in zip(few, trace, strict=True))
    assert not any(job.spot for job in two_classes(trace, 0.0, 1.0, 7))


def test_equal_sizes_have_about_equal_gpu_time() -> None:
    """Each of 1, 2, 4 and 8 GPUs has a quarter of it, to a few points."""
    made = equal_sizes([TraceJob(f"j{number}", 0.0, 60.0, 3) for number in range(8_000)], 5)
    total = sum(job.gpu_seconds for job in made)
    shares = [sum(job.gpu_seconds for job in made if job.gpus == size) / total for size in (1, 2, 4, 8)]
    assert shares == pytest.approx([0.25] * 4, abs=0.03)


def test_load_counts_what_runs_while_jobs_are_submitted() -> None:
    """Sixteen GPUs busy for 100 s are four nodes at a load of a half; a job that runs on for years counts until the
    last submission; the largest job fits in any case."""
    steady = [TraceJob("a", 0.0, 10.0**9, 16), TraceJob("b", 100.0, 1.0, 1)]
    assert nodes_for(steady, 0.5) == 4
    assert nodes_for([TraceJob("a", 0.0, 1.0, 80)], 1.0) == 10


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), rules, st.integers(2, 4))
def test_what_jobs_held_is_their_work_and_what_was_wasted(seed: int, rule: EvictionRule, nodes: int) -> None:
    """To the millisecond; and at no instant more GPUs of a node than it has."""
    runs = _play(_drawn(seed), nodes, rule)
    for run in runs:
        held_ms = sum(one.until_ms - one.from_ms for one in run.held)
        assert held_ms * run.job.gpus == run.job.work_ms * run.job.gpus + run.wasted_gpu_ms
        assert len(run.held) == run.evictions + 1
    instants = {one.from_ms for run in runs for one in run.held}
    for instant in instants:
        taken: dict[str, int] = {}
        for run in runs:
            for one in run.held:
                if one.from_ms <= instant < one.until_ms:
                    for node_id, parts in one.places.items():
                        taken[node_id] = taken.get(node_id, 0) + parts * run.job.part_gpus
        assert max(taken.values()) <= 8


def test_figures_of_a_play_are_those_of_its_runs() -> None:
    """A spot job that is evicted once, for a guaranteed job that has to wait for its save."""
    runs = _play([_job("s", 0, 60, spot=True, saves=True), _job("g", 10, 30)])
    found = figures_of(runs)
    spot, guaranteed = runs
    assert (found.evictions, found.waiting_s, found.waiting_median_s, found.waiting_p90_s) == (1, 13, 13, 13)
    assert found.completion_s == ((spot.end_ms or 0) - spot.job.submit_ms) / 1000
    assert found.wasted == spot.wasted_gpu_ms / (8 * 60 * MINUTE_MS)
    assert guaranteed.evictions == 0


def test_the_share_held_counts_between_the_first_and_the_last_submission() -> None:
    """One of two nodes for ten of twenty minutes; what is held after the last submission does not count."""
    runs = _play([_job("a", 0, 10), _job("b", 20, 500)], nodes=2)
    assert share_held(runs, 2) == pytest.approx(0.25)
    assert share_held(_play([_job("a", 0, 10)]), 1) == 0.0, "no time passes between one submission and itself"
