"""Generated traces have the published distributions, and submissions come in bursts, with a daily cycle."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.simulator.traces.figures import CLUSTERS, DURATION_POINTS_S
from app.simulator.traces.generating import generate
from app.simulator.traces.job import Trace, TraceJob

each_cluster = pytest.mark.parametrize("like", sorted(CLUSTERS))


@lru_cache
def large(like: str, seed: int = 0) -> Trace:
    return generate(like, 20_000, seed)


def share_at_most(jobs: list[TraceJob], seconds: float) -> float:
    return 100 * sum(job.duration_s <= seconds + 1e-3 for job in jobs) / len(jobs)


def counts_of(trace: Trace, window_s: int) -> np.ndarray:
    return np.bincount([int(job.submit_s // window_s) for job in trace.jobs])


def spread_of(trace: Trace, window_s: int) -> float:
    """Standard deviation of the submissions in a window, as a share of their mean."""
    counts = counts_of(trace, window_s)
    return float(counts.std() / counts.mean())


@each_cluster
def test_durations_follow_the_published_curves(like: str) -> None:
    """For each kind of job, at each point of its curve, within what rounding to whole jobs makes."""
    for name, kind in CLUSTERS[like].types.items():
        jobs = [job for job in large(like).jobs if job.job_type == name]
        for seconds, percent in zip(DURATION_POINTS_S, kind.duration_percent, strict=True):
            assert share_at_most(jobs, seconds) == pytest.approx(percent, abs=150 / len(jobs)), (name, seconds)


@each_cluster
def test_gpus_follow_the_published_curve(like: str) -> None:
    """So many percent of the jobs take at most so many GPUs, and only published sizes occur."""
    gpus = [job.gpus for job in large(like).jobs]
    assert set(gpus) <= set(CLUSTERS[like].gpus_percent)
    for size, percent in CLUSTERS[like].gpus_percent.items():
        assert 100 * sum(one <= size for one in gpus) / len(gpus) == pytest.approx(percent, abs=0.02)


@each_cluster
def test_kinds_of_jobs_have_their_shares(like: str) -> None:
    """To the job: the shares are rounded, not drawn."""
    counts = Counter(job.job_type for job in large(like).jobs)
    total = sum(kind.jobs for kind in CLUSTERS[like].types.values())
    for name, kind in CLUSTERS[like].types.items():
        assert abs(counts[name] - 20_000 * kind.jobs / total) < 1


@pytest.mark.parametrize(
    ("like", "median_s", "mean_s"), [("seren", 122, 1414), ("kalos", 124, 1260), ("philly", 874, 18006)]
)
def test_the_published_averages(like: str, median_s: float, mean_s: float) -> None:
    """Medians and means of the clusters' summary table, which are no input here, come out to a fifth."""
    durations = [job.duration_s for job in large(like).jobs]
    assert np.median(durations) == pytest.approx(median_s, rel=0.2)
    assert np.mean(durations) == pytest.approx(mean_s, rel=0.2)


@pytest.mark.parametrize(("like", "gap_s"), [("seren", 35.3), ("kalos", 798.6), ("philly", 100.9)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_submissions_come_at_the_published_rate(like: str, gap_s: float, seed: int) -> None:
    """The time it covers by its number of jobs, at any size of the trace."""
    trace = generate(like, 1000, seed)
    assert trace.jobs[0].submit_s == 0
    assert trace.span_s / 999 == pytest.approx(gap_s, rel=1e-3)


@pytest.mark.parametrize(("window_s", "expected"), [(600, 2.8), (4 * 3600, 1.3)])
def test_submissions_come_in_bursts(window_s: int, expected: float) -> None:
    """As in the Philly log, where they vary by 2.8 times their mean in 10 minutes, and by 1.3 times in 4 hours."""
    spreads = [spread_of(large("philly", seed), window_s) for seed in range(4)]
    assert np.mean(spreads) == pytest.approx(expected, rel=0.15)


def test_days_are_busier_than_nights() -> None:
    """Over half a year, 12 to 18 o'clock has half as many submissions again as 0 to 6; the clock starts at 9."""
    hours = [int(job.submit_s / 3600 + 9) % 24 for seed in range(3) for job in generate("kalos", 5000, seed).jobs]
    by_hour = np.bincount(hours, minlength=24)
    assert by_hour[12:18].sum() > 1.4 * by_hour[:6].sum()


@pytest.mark.parametrize(
    ("like", "published"),  # percent of the GPU time that jobs of at most so many GPUs use (cdf_job_gpunum.pdf)
    [
        ("seren", {1: 1.3, 4: 2.4, 8: 11.9, 32: 19.1, 64: 27.6, 128: 41.7, 256: 56.3, 512: 69.7}),
        ("kalos", {1: 0, 8: 0.6, 32: 2.0, 64: 3.3, 128: 3.7, 256: 24.9, 512: 64.1}),
        ("philly", {1: 16.4, 2: 19.4, 4: 38.2, 8: 88.0, 16: 97.2}),
    ],
)
def test_large_jobs_have_their_share_of_gpu_time(like: str, published: dict[int, float]) -> None:
    """To a few points on average; were durations and GPUs independent, Seren's would be off by 25, Philly's by 13."""
    jobs = [job for seed in range(4) for job in large(like, seed).jobs]
    total = sum(job.gpu_seconds for job in jobs)
    shares = {size: 100 * sum(job.gpu_seconds for job in jobs if job.gpus <= size) / total for size in published}
    assert np.mean([abs(shares[size] - percent) for size, percent in published.items()]) < 10


def test_jobs_come_in_no_order() -> None:
    """Neither long nor large ones come first."""
    jobs = large("seren").jobs
    logs = np.log([[job.duration_s, job.gpus] for job in jobs])
    places = np.arange(len(jobs))
    assert abs(np.corrcoef(logs[:, 0], places)[0, 1]) < 0.03
    assert abs(np.corrcoef(logs[:, 1], places)[0, 1]) < 0.03


@given(like=st.sampled_from(sorted(CLUSTERS)), jobs=st.integers(1, 60), seed=st.integers(0, 2**63))
@settings(max_examples=60)
def test_every_trace_is_a_trace(like: str, jobs: int, seed: int) -> None:
    """As many jobs as asked for, sorted, with ids of their own, that run and need GPUs."""
    trace = generate(like, jobs, seed)
    assert len({job.job_id for job in trace.jobs}) == len(trace.jobs) == jobs
    assert [job.job_id for job in trace.jobs] == sorted(job.job_id for job in trace.jobs)
    assert all(job.duration_s >= 1 and job.gpus >= 1 and job.submit_s >= 0 for job in trace.jobs)
    assert generate(like, jobs, seed) == trace


def test_seeds_and_sizes_differ() -> None:
    """Another seed gives other jobs; small traces have the median of the large ones."""
    assert generate("seren", 50, 1).jobs != generate("seren", 50, 2).jobs
    for seed in range(5):
        durations = [job.duration_s for job in generate("seren", 200, seed).jobs]
        assert np.median(durations) == pytest.approx(133, rel=0.15)


@pytest.mark.parametrize(
    ("like", "jobs", "seed", "told"),
    [
        ("helios", 10, 0, "like: 'helios' is none of seren, kalos, philly"),
        ("seren", 0, 0, "jobs: 0 is below 1"),
        ("seren", 10, -1, "seed: -1 is negative"),
    ],
)
def test_what_cannot_be_generated(like: str, jobs: int, seed: int, told: str) -> None:
    """The field, its value and what is accepted are named."""
    with pytest.raises(InvalidInput, match=told):
        generate(like, jobs, seed)
