"""Elastic jobs on a fixed cluster: what every policy keeps to, and what costs change."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.elastic.kinds import ElasticKind
from app.core.elastic.rules import LITERAL, MENDED
from app.errors import InvalidInput
from app.simulator.elastic.comparing import ONE_LITERAL, POLICIES, play, policy_named
from app.simulator.elastic.costs import FREE, LORA_8B, LORA_8B_FINISHES, MODELS, TEN_SECONDS
from app.simulator.elastic.engine import ElasticEngine
from app.simulator.elastic.workload import MixedJob, MixedOptions, mixed_jobs
from benchmarks.mixed import generated, plays, told

RIGID = ("tiresias", "srtf", "fifo")


def job(submit_s: float, duration_s: float, request: int = 1, *, short: bool = False, elastic: bool = True) -> MixedJob:
    kind = ElasticKind.INTERACTIVE if short else ElasticKind.BATCH
    return MixedJob(submit_s, duration_s, request, short, kind, elastic)


drawn = st.builds(
    job,
    st.floats(0, 1e4),
    st.floats(1, 1e4),
    st.integers(1, 8),
    short=st.booleans(),
    elastic=st.booleans(),
)


@settings(max_examples=20)
@given(st.lists(drawn, min_size=1, max_size=12), st.sampled_from(POLICIES), st.sampled_from(sorted(MODELS)))
def test_every_job_ends_under_every_policy(jobs: list[MixedJob], policy: str, costs: str) -> None:
    """No GPU is given twice (the engine raises), nothing ends sooner than its work allows, and all of it ends."""
    model = MODELS[costs]
    played = ElasticEngine(jobs, 8, policy_named(policy, jobs, 8, model), model).play()
    for one, found in zip(jobs, played, strict=True):
        fastest = 2.0 if one.is_elastic and policy not in RIGID else 1.0
        assert one.submit_s <= found.first_gpu_s
        assert found.end_s - found.first_gpu_s >= one.duration_s / fastest * (1 - 1e-9) - 1e-3
    if policy == "fifo":
        assert all(one.resizes == 0 for one in played)


def test_shortest_first_stops_the_longer_job() -> None:
    """And is told the remaining time, not the whole: 60 s are left of the first when 50 s more come."""
    jobs = [job(0, 100), job(40, 50), job(45, 59)]
    played = ElasticEngine(jobs, 1, policy_named("srtf", jobs, 1, FREE), FREE).play()
    assert [one.end_s for one in played] == [209.0, 90.0, 149.0]


def test_tiresias_puts_whoever_was_served_much_behind() -> None:
    """3,250 GPU-seconds are the end of the first queue."""
    jobs = [job(0, 10_000), job(100, 1000)]
    played = ElasticEngine(jobs, 1, policy_named("tiresias", jobs, 1, FREE), FREE).play()
    assert played[1].first_gpu_s == pytest.approx(3250)
    assert [one.end_s for one in played] == pytest.approx([11_000, 4250])


def test_a_batch_job_gives_a_part_and_goes_on_more_slowly() -> None:
    """It has both GPUs for 100 s (200 s of its work), one for 50 s, then both again."""
    jobs = [job(0, 1000), job(100, 50, short=True)]
    played = ElasticEngine(jobs, 2, policy_named("cornucopia", jobs, 2, FREE), FREE).play()
    assert played[1].first_gpu_s == 100
    assert played[0].end_s == pytest.approx(150 + (1000 - 250) / 2)


def test_a_resize_costs_what_its_model_says() -> None:
    """The same story as free, later by the pauses of its resizes, in which nothing is done; jobs that do not grow."""
    jobs = [job(0, 1000, 2), job(100, 100, 2, short=True)]
    ends = {}
    for costs in (FREE, TEN_SECONDS):
        played = ElasticEngine(jobs, 2, policy_named("cornucopia", jobs, 2, costs), costs).play()
        ends[costs.name] = played[0].end_s
        assert (played[0].resizes, played[0].waste_gpu_s) == (2, 2 * costs.pause_s)
    assert ends == {"free": 1100, "10 s": 1110}


def test_newcomers_wait_for_a_step_only_where_it_is_finished() -> None:
    """Dropping it costs whoever leaves, as the larger pause."""
    jobs = [job(0, 1000, 2), job(100, 100, 2, short=True)]
    waits = {}
    for costs in (LORA_8B, LORA_8B_FINISHES):
        played = ElasticEngine(jobs, 2, policy_named("cornucopia", jobs, 2, costs), costs).play()
        waits[costs.name] = played[1].first_gpu_s - 100
    assert waits["8B LoRA"] == 0
    assert 0 < waits["8B LoRA, step finished"] <= 5
    assert LORA_8B.pause_s == LORA_8B_FINISHES.pause_s + 5


def test_the_draw_gives_the_published_shares_and_some_long_interactive_jobs() -> None:
    trace = generated(2000, 0)
    jobs = mixed_jobs(trace, MixedOptions())
    short = [one for one in jobs if one.is_interactive]
    time_of = {True: 0.0, False: 0.0}
    for one in jobs:
        time_of[one.is_interactive] += one.duration_s * one.request
    assert len(short) == round(0.2207 * len(jobs))
    assert time_of[True] / sum(time_of.values()) == pytest.approx(0.0082, abs=0.002)
    middle = sorted(one.duration_s for one in jobs)[len(jobs) // 2]
    assert any(one.duration_s > middle for one in short)
    assert mixed_jobs(trace, MixedOptions()) == jobs
    assert mixed_jobs(trace, MixedOptions(seed=1)) != jobs


def test_labels_and_sizes_are_drawn_as_asked() -> None:
    trace = generated(1000, 0)
    jobs = mixed_jobs(trace, MixedOptions(mislabelled=0.1, inelastic=0.1, shards_per_gpu=2))
    batch = [one for one in jobs if not one.is_interactive]
    assert sum(one.label is ElasticKind.INTERACTIVE for one in batch) == round(0.1 * len(batch))
    assert all(one.label is ElasticKind.INTERACTIVE for one in jobs if one.is_interactive)
    assert all(one.shards == 2 * one.request for one in jobs)


@pytest.mark.parametrize("share", [0.05, 0.10])
def test_jobs_that_are_not_elastic_are_drawn_of_each_class_of_sizes(share: float) -> None:
    """2 to 4, 5 to 8 and more GPUs, as the paper has it; a job on one GPU is in no class."""
    jobs = mixed_jobs(generated(2000, 0), MixedOptions(inelastic=share))
    for least, most in ((2, 4), (5, 8), (9, 100)):
        members = [one for one in jobs if least <= one.request <= most]
        assert members
        assert sum(not one.is_elastic for one in members) == round(share * len(members))
    assert all(one.is_elastic for one in jobs if one.request == 1)


def test_waiting_has_three_definitions() -> None:
    """An interactive job that comes second has one of its two GPUs at once, both when the first one ends at 100 s. It
    has done 100 s' worth of its 200 GPU-seconds by then, so it ends after 150 s instead of 100."""
    jobs = [job(0, 100, 2, short=True), job(0, 100, 2, short=True)]
    found = play("cornucopia", jobs, 3)["interactive"]
    assert (found["at_once"], found["mean_first_gpu_s"]) == (1.0, 0.0)
    assert found["mean_full_size_s"] == pytest.approx((0 + 100) / 2)
    assert found["mean_slowdown"] == pytest.approx((1 + 1.5) / 2)


@pytest.mark.parametrize("name", sorted(ONE_LITERAL))
def test_one_point_is_literal_and_all_others_are_mended(name: str) -> None:
    """Each differs from ours in one rule alone, and it has the paper's."""
    rules = asdict(ONE_LITERAL[name])
    differing = {key for key, value in asdict(MENDED).items() if rules[key] != value}
    assert len(differing) == 1
    assert all(rules[key] == asdict(LITERAL)[key] for key in differing)


def test_what_cannot_be_played_is_told() -> None:
    with pytest.raises(InvalidInput, match="fewer than a job asks for"):
        play("fifo", [job(0, 1, 9)], 8)
    with pytest.raises(InvalidInput, match="no job"):
        play("fifo", [], 8)
    with pytest.raises(InvalidInput, match="none of"):
        play("best", [job(0, 1)], 8)


def test_the_benchmark_names_what_it_misses() -> None:
    trace = generated(120, 0)
    found = told(trace, list(plays(trace, 32, 0, goals_only=True)))
    figures = found["detail"]["clusters"][32]
    assert found["value"] == figures["to_tiresias_lora"]
    assert all(math.isfinite(one) for one in figures.values())
    assert ("32 GPUs: first_gpu_p99_s_lora" in found["detail"]["missed"]) == (figures["first_gpu_p99_s_lora"] > 1)
