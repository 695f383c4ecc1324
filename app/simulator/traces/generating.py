"""Traces drawn from published distributions: they look like a cluster's, and no row of one is in them.

Each kind of job has its share of the jobs and its own distribution of durations; numbers of GPUs follow the cluster's.
What is published of the two together is the share of GPU time by size of job. One number for each cluster makes larger
jobs run longer so that this comes out to a few percentage points.

Submissions come at the published mean rate, with a daily cycle and in bursts: the rate is the product of the cycle and
of random factors for every 4 hours and every 10 minutes. The clock starts at 9 in the morning.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

from app.errors import InvalidInput
from app.simulator.traces import figures
from app.simulator.traces.job import Trace, TraceJob

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

CLUSTERS = tuple(figures.CLUSTERS)
START_HOUR = 9


def generate(like: str, jobs: int, seed: int) -> Trace:
    """`jobs` jobs like those of a cluster; the same seed gives the same jobs.

    Draws are stratified, one for each n-th part of a distribution, so that small traces have its shape too.
    """
    import numpy as np  # help is listed without it

    if like not in figures.CLUSTERS:
        raise InvalidInput(f"like: {like!r} is none of {', '.join(CLUSTERS)}", param="like")
    if jobs < 1:
        raise InvalidInput(f"jobs: {jobs} is below 1; give how many jobs to generate", param="jobs")
    if seed < 0:
        raise InvalidInput(f"seed: {seed} is negative; give a whole number of at least 0", param="seed")
    cluster = figures.CLUSTERS[like]
    chance = np.random.default_rng([seed, jobs])
    kinds: list[tuple[str, float]] = []
    for name, count in _shares({name: one.jobs for name, one in cluster.types.items()}, jobs).items():
        parts = _stratified(count, chance)
        kinds += [(name, duration_s) for duration_s in _durations(cluster.types[name], parts).tolist()]
    gpus = _gpus(cluster, [duration_s for _, duration_s in kinds], chance)
    submissions = _submissions(cluster, jobs, chance)
    order = chance.permutation(jobs)
    digits = len(str(jobs - 1))
    return Trace.of(
        f"{like}-{jobs}-{seed}",
        [
            TraceJob(
                job_id=f"{like}-{place:0{digits}}",
                submit_s=round(submissions[place], 3),
                duration_s=round(kinds[one][1], 3),
                gpus=gpus[one],
                gpu_type=cluster.gpu_type,
                job_type=kinds[one][0],
            )
            for place, one in enumerate(order.tolist())
        ],
    )


def _shares(weights: dict[str, int], total: int) -> dict[str, int]:
    """Whole numbers in proportion to the weights; the largest remainders are rounded up."""
    exact = {name: total * weight / sum(weights.values()) for name, weight in weights.items()}
    shares = {name: math.floor(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: shares[name] - exact[name])
    for name in by_remainder[: total - sum(shares.values())]:
        shares[name] += 1
    return shares


def _stratified(count: int, chance: np.random.Generator) -> Numbers:
    """One uniform draw from each n-th part of 0 to 1, in random order."""
    import numpy as np

    draws: Numbers = (np.arange(count) + chance.random(count)) / max(count, 1)
    return chance.permutation(draws)


def _durations(kind: figures.JobType, parts: Numbers) -> Numbers:
    """The published curve turned around: log-linear between its points, at least 1 s."""
    import numpy as np

    seconds = [*figures.DURATION_POINTS_S]
    percents = [*kind.duration_percent]
    if percents[-1] < 100:
        seconds, percents = [*seconds, figures.LONGEST_S], [*percents, 100.0]
    return np.exp(np.interp(parts * 100, percents, np.log(seconds)))


def _gpus(cluster: figures.PublishedCluster, durations: list[float], chance: np.random.Generator) -> list[int]:
    """For each duration a number of GPUs: the published sizes, the large ones by and large for the long jobs."""
    import numpy as np

    jobs = len(durations)
    longer = np.empty(jobs)
    normal = NormalDist()
    longer[np.argsort(durations)] = [normal.inv_cdf((rank + 0.5) / jobs) for rank in range(jobs)]
    score = cluster.gpus_with_duration * longer + chance.standard_normal(jobs)
    parts = np.sort(_stratified(jobs, chance))
    places = np.searchsorted(list(cluster.gpus_percent.values()), parts * 100, side="left")
    gpus = np.empty(jobs, dtype=int)
    gpus[np.argsort(score)] = np.array(list(cluster.gpus_percent))[places]
    return [int(one) for one in gpus]


def _submissions(cluster: figures.PublishedCluster, jobs: int, chance: np.random.Generator) -> list[float]:
    """So many instants with the published mean gap, at the varying rate; the first is 0."""
    import numpy as np

    span_s = cluster.mean_gap_s * jobs
    windows = math.ceil(span_s / figures.FAST_WINDOW_S)
    middles_s = (np.arange(windows) + 0.5) * figures.FAST_WINDOW_S
    hours = START_HOUR + middles_s / 3600
    cycle = 1 + figures.DAILY_SWING * np.cos((hours - figures.PEAK_HOUR) * (2 * math.pi / 24))
    slow = _factors(math.ceil(span_s / figures.SLOW_WINDOW_S), figures.SLOW_VARIANCE, chance)
    fast = _factors(windows, figures.FAST_VARIANCE, chance)
    rates = cycle * fast * slow[(middles_s // figures.SLOW_WINDOW_S).astype(int)]
    passed = np.concatenate([[0.0], np.cumsum(rates)])
    borders_s = np.minimum(np.arange(windows + 1) * figures.FAST_WINDOW_S, span_s)
    instants: Numbers = np.sort(np.interp(chance.random(jobs) * passed[-1], passed, borders_s))
    since_first: Numbers = instants - instants[0]
    # The last windows may be quiet: stretched, so that the mean gap is the published one in small traces too.
    stretch = cluster.mean_gap_s * (jobs - 1) / since_first[-1] if since_first[-1] > 0 else 1.0
    return [float(one) for one in since_first * stretch]


def _factors(count: int, variance: float, chance: np.random.Generator) -> Numbers:
    """Positive random factors of mean 1."""
    return chance.gamma(1 / variance, variance, max(count, 1))
