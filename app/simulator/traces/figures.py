"""Published distributions of cluster workloads, carried over as numbers.

Seren and Kalos: Q. Hu et al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024. The
curves are those of the AcmeTrace repository (InternLM/AcmeTrace, CC-BY-4.0): `figure/cdf_job_duration_util.pdf`,
`figure/cdf_job_gpunum.pdf`; job counts and months from its README. GPU jobs only, March to August 2023.

Philly: M. Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019. The
curves are those of the same figures, which compare with Philly; job count and dates from the README of the public log
(msr-fiddle/philly-traces, CC-BY-4.0), and from that log how submissions come in bursts and over the day.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

DAY_S = 86_400
Curve = tuple[float, ...]

# Durations: the percentage of jobs that take at most 1, 2, 4 ... 2**21 seconds.
DURATION_POINTS_S = tuple(2**power for power in range(22))
LONGEST_S = 4_240_676  # of all jobs of the three clusters (Philly)


@dataclass(frozen=True, slots=True)
class JobType:
    jobs: int  # how many the trace has
    duration_percent: Curve


@dataclass(frozen=True, slots=True)
class PublishedCluster:
    """What is published of one cluster. `gpus_percent`: how many percent of the jobs take at most so many GPUs; the few
    jobs of a size between two of these are counted with the larger one. `gpus_with_duration` is not published: how
    strongly GPUs go with durations, chosen so that the share of GPU time by size of job comes out near the figure's.
    """

    jobs: int
    span_s: float
    gpu_type: str
    types: Mapping[str, JobType]
    gpus_percent: Mapping[int, float]
    gpus_with_duration: float

    @property
    def mean_gap_s(self) -> float:
        return self.span_s / self.jobs


# Submissions: how they vary, from the public Philly log (2017-09-24 to 2017-11-14).
DAILY_SWING = 0.3  # the first harmonic of submissions by hour of the day, as a share of their mean
PEAK_HOUR = 15
SLOW_WINDOW_S = 4 * 3600  # in which the variance of submissions is about 1.6 times the squared mean
SLOW_VARIANCE = 1.3
FAST_WINDOW_S = 600  # in which it is about 7.6 times
FAST_VARIANCE = 3.0

# fmt: off
CLUSTERS: Mapping[str, PublishedCluster] = MappingProxyType({
    "seren": PublishedCluster(jobs=450_590, span_s=184 * DAY_S, gpu_type="A100", types={
        "Eval": JobType(292_212, (
            2.30654, 2.92185, 5.21539, 10.5687, 25.17727, 32.78168, 37.37458, 49.74676, 67.16904,
            79.96592, 88.79683, 93.85515, 96.52581, 98.19001, 99.06267, 99.57223, 99.79022, 99.90965,
            99.96407, 99.98836, 99.99795, 100
        )),
        "Pretrain": JobType(4_026, (
            4.27223, 5.71287, 9.8609, 12.09637, 15.59861, 20.4918, 27.37208, 34.87332, 46.79583, 61.79831,
            73.42275, 80.45206, 84.07849, 86.61202, 88.45007, 91.08296, 94.31197, 97.19324, 98.78291,
            99.62742, 99.97516, 100
        )),
        "SFT": JobType(66_971, (
            1.01835, 1.48721, 3.46419, 6.55956, 12.62337, 21.67505, 27.58955, 37.51474, 57.60852,
            78.79679, 89.26998, 94.48567, 97.33765, 98.63672, 99.15784, 99.51472, 99.79842, 99.92385,
            99.9776, 99.99403, 100, 100
        )),
        "MLLM": JobType(13_288, (
            2.09211, 3.07044, 5.09482, 9.40698, 14.69747, 27.37056, 33.44371, 40.84889, 50.17309,
            66.84226, 79.70349, 85.61108, 89.16315, 91.30042, 92.9109, 97.31337, 98.87869, 99.46568,
            99.82691, 99.98495, 99.98495, 100
        )),
        "Debug": JobType(8_469, (
            3.68402, 4.61684, 6.31716, 11.72511, 19.34113, 29.80281, 39.13095, 52.15492, 68.36699,
            81.94592, 91.21502, 95.50124, 97.35506, 98.28787, 98.80742, 99.22069, 99.56311, 99.78746,
            99.85831, 99.96458, 99.98819, 100
        )),
        "Other": JobType(65_624, (
            2.49451, 3.02176, 9.39138, 22.82854, 29.0854, 39.02231, 46.81062, 58.88394, 70.91156,
            79.48007, 85.53273, 89.20212, 94.18963, 95.31879, 96.64909, 98.00683, 99.31123, 99.62666,
            99.83543, 99.93752, 99.99238, 100
        )),
    }, gpus_percent={
        1: 54.03804, 2: 65.42555, 4: 67.94536, 8: 96.7476, 16: 97.8608, 32: 98.81844, 64: 99.31556, 128:
        99.55103, 256: 99.73302, 512: 99.86218, 1024: 100.0
    }, gpus_with_duration=0.35),
    "kalos": PublishedCluster(jobs=19_907, span_s=184 * DAY_S, gpu_type="A100", types={
        "Eval": JobType(18_471, (
            0, 0, 0, 0.01083, 1.53213, 19.51167, 39.91663, 52.66634, 71.81528, 81.15966, 87.02831,
            93.79568, 98.05641, 99.59937, 99.83758, 99.97834, 99.97834, 100, 100, 100, 100, 100
        )),
        "Pretrain": JobType(641, (
            0, 0, 0, 0, 0, 4.21217, 9.82839, 14.35257, 25.74103, 43.83775, 57.09828, 65.36661, 71.91888,
            76.91108, 82.37129, 87.83151, 93.29173, 96.72387, 98.90796, 99.84399, 100, 100
        )),
        "Debug": JobType(537, (
            0, 0, 0, 0, 1.30354, 8.37989, 17.31844, 25.88454, 38.73371, 70.7635, 88.82682, 97.2067,
            99.0689, 99.62756, 99.81378, 100, 100, 100, 100, 100, 100, 100
        )),
        "Other": JobType(250, (
            0, 0, 0, 0, 2, 20.4, 29.2, 35.2, 46.4, 64.8, 75.2, 79.2, 84, 85.2, 87.6, 90, 92.8, 95.6, 98.8,
            98.8, 100, 100
        )),
    }, gpus_percent={
        1: 86.28121, 2: 88.35585, 8: 93.91671, 16: 94.2583, 32: 94.65012, 64: 95.30316, 128: 95.67991, 256:
        96.89556, 512: 98.94007, 1024: 100.0
    }, gpus_with_duration=0.2),
    "philly": PublishedCluster(jobs=117_325, span_s=137 * DAY_S, gpu_type="", types={
        "": JobType(117_325, (
            0.02567, 0.07968, 0.16644, 0.82244, 3.61734, 8.42186, 18.88169, 26.98573, 31.50253, 36.28138,
            54.9143, 67.46521, 79.28043, 84.59754, 90.28648, 92.71398, 94.85906, 96.94925, 98.39318,
            99.31566, 99.80081, 99.95485
        )),
    }, gpus_percent={
        1: 82.42059, 2: 84.48334, 4: 92.04646, 8: 98.90577, 16: 99.80523, 32: 100.0
    }, gpus_with_duration=0.25),
})
# fmt: on
