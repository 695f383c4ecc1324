"""How long a job trains on other types of GPU, beside the one that its times speak of.

An hour of rent is not an hour of work: on a GPU that trains half as fast, a job holds twice as many of them, and may
miss its deadline. What is known of a job's time by type comes from what it states of its training, or from earlier jobs
of its app; where nobody knows, from what GPUs are sold to do. That is believed by half: an H100 has 2.6 times the rates
of an A100, and trains about twice as fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from app.core.roofline import gpu_named
from app.core.throughput import plain_gpu

SAME = 1_000
"""Permille: as long as on the type that the job's times speak of."""

_USUAL_GPU = "a100"  # which a job's times speak of where nothing is known
_BELIEVED = 0.7  # of the logarithm of a ratio of rates: 1.95 for the 2.6 above
_THERE_FASTER, _THERE_SLOWER = 0.5, 0.9  # of a type that a job would leave the one for where it trains
_PRIOR_SAMPLES = 1.0  # how many jobs the rates count as
_MOST_AGAINST_RATES = 1.5  # no measurement says more: then other jobs were measured than one thinks
_LEAST, _MOST = 10, 100_000
_DIGITS = 2  # that count of what was measured: so that plans do not change with every job that ends


@dataclass(frozen=True, slots=True)
class GpuSpeeds:
    """`gpu_type`: of which the job's times speak, as `plain_gpu` writes it; empty: of a usual one. `times`: how long it
    takes on others, in permille of that, where that is known. `trains_there`: whether it trains on that type now, so
    that it would leave what it has for what is only believed. `linked`: whether its GPUs wait for each other."""

    gpu_type: str = ""
    times: tuple[tuple[str, int], ...] = ()
    trains_there: bool = False
    linked: bool = False

    def seen_from(self, gpu_type: str, *, trains_there: bool = False) -> GpuSpeeds:
        """The same, of a job whose times speak of another type."""
        plain, linked = plain_gpu(gpu_type), self.linked
        if plain == self.gpu_type:
            return self if trains_there == self.trains_there else replace(self, trains_there=trains_there)
        there = _within(dict(self.times).get(plain, 0))
        if plain not in dict(self.times):
            return GpuSpeeds(plain, (), trains_there, linked)
        times = {name: _within(time * SAME / there) for name, time in self.times if name != plain}
        times |= {self.gpu_type: _within(SAME * SAME / there)} if self.gpu_type else {}
        return GpuSpeeds(plain, tuple(sorted(times.items())), trains_there, linked)

    @property
    def named(self) -> str:
        """The type that its times speak of, for people."""
        return (self.gpu_type or _USUAL_GPU).upper()

    def knows(self, gpu_type: str) -> bool:
        """Whether its time there was predicted or measured, and not taken from what such GPUs are sold to do."""
        return plain_gpu(gpu_type) in dict(self.times)

    def measured(self, step_ms: float, others_ms: Mapping[str, float]) -> GpuSpeeds:
        """With what the job's own runs have measured: a step of it takes `step_ms` here, and others elsewhere."""
        own = {plain_gpu(name): ms for name, ms in others_ms.items()}
        own.pop(self.gpu_type, None)
        times = {name: _rounded(SAME * ms / step_ms) for name, ms in own.items() if _is_time(ms) and _is_time(step_ms)}
        return self if not times else replace(self, times=tuple(sorted((dict(self.times) | times).items())))


UNKNOWN_SPEEDS = GpuSpeeds()


@lru_cache(maxsize=65_536)
def time_permille(speeds: GpuSpeeds, gpu_type: str) -> int:
    """How long the job takes on GPUs of this type, in permille of its times. A type that nobody has figures of counts
    as the one that they speak of."""
    plain = plain_gpu(gpu_type)
    if plain == speeds.gpu_type:
        return SAME
    known = dict(speeds.times).get(plain)
    if known is not None:
        return _within(known)
    by_rates = _by_rates(speeds.gpu_type or _USUAL_GPU, plain, linked=speeds.linked)
    if by_rates is None:
        return SAME
    believed = _BELIEVED
    if speeds.trains_there:
        believed = _THERE_FASTER if by_rates < 1 else _THERE_SLOWER
    return _within(SAME * by_rates**believed)


def time_on(speeds: GpuSpeeds | None, gpu_type: str, time_ms: int) -> int:
    """How long the job takes there for what takes `time_ms` by its times; as long, where it takes one type alone."""
    return time_ms if speeds is None else time_ms * time_permille(speeds, gpu_type) // SAME


def stated_speeds(gpu_type: str, step_ms: Mapping[str, float], *, linked: bool = False) -> GpuSpeeds:
    """Of a training whose steps are predicted to take so long, by type of GPU; its times speak of `gpu_type`."""
    own_ms = step_ms.get(gpu_type)
    if not own_ms:
        return GpuSpeeds(plain_gpu(gpu_type), (), False, linked)
    others = ((plain_gpu(name), ms) for name, ms in step_ms.items() if name != gpu_type)
    times = {name: _within(SAME * ms / own_ms) for name, ms in others}
    return GpuSpeeds(plain_gpu(gpu_type), tuple(sorted(times.items())), False, linked)


@dataclass(frozen=True, slots=True)
class TimesOnType:
    """What the jobs of an app took on GPUs of one type: in the mean of so many."""

    gpu_type: str
    samples: int
    run_ms: float
    step_ms: float | None = None


def usual_type(seen: Sequence[TimesOnType]) -> TimesOnType | None:
    """Of which an app's usual times speak: where most of its jobs have run, of those that told their steps if any."""
    told = [one for one in seen if one.step_ms]
    return max(told or seen, key=lambda one: (one.samples, one.gpu_type), default=None)


@lru_cache(maxsize=4_096)
def usual_speeds(seen: tuple[TimesOnType, ...]) -> GpuSpeeds:
    """Of an app, by how long its jobs took on each type of GPU.

    Jobs of one app are not always alike: a minute of debugging on the one type, a night of training on the other. So
    what was measured counts more the more jobs it is of, and nothing beyond what the types could explain.
    """
    usual = usual_type(seen)
    if usual is None:
        return UNKNOWN_SPEEDS
    known = ((plain_gpu(one.gpu_type), _learned(usual, one)) for one in seen if one is not usual)
    times = {name: time for name, time in known if time is not None}
    return GpuSpeeds(plain_gpu(usual.gpu_type), tuple(sorted(times.items())))


def _is_time(time_ms: float | None) -> bool:
    return time_ms is not None and 0 < time_ms < math.inf


def _learned(usual: TimesOnType, other: TimesOnType) -> int | None:
    mine, its = (usual.step_ms or 0.0, other.step_ms or 0.0) if usual.step_ms else (usual.run_ms, other.run_ms)
    by_rates = _by_rates(plain_gpu(usual.gpu_type), plain_gpu(other.gpu_type), linked=False)
    if by_rates is None or not _is_time(mine) or not _is_time(its):
        return None
    low, high = min(1.0, by_rates) / _MOST_AGAINST_RATES, max(1.0, by_rates) * _MOST_AGAINST_RATES
    measured, samples = min(max(its / mine, low), high), max(0, min(usual.samples, other.samples))
    mean = (samples * math.log(measured) + _PRIOR_SAMPLES * _BELIEVED * math.log(by_rates)) / (samples + _PRIOR_SAMPLES)
    return _rounded(SAME * math.exp(mean))


@lru_cache(maxsize=4_096)
def _by_rates(gpu_type: str, other: str, *, linked: bool) -> float | None:
    """The time on the other type, by what both are sold to do: arithmetic, bytes from memory, and of GPUs that wait for
    each other bytes between them."""
    mine, its = gpu_named(gpu_type), gpu_named(other)
    if mine is None or its is None:
        return None
    ratios = [mine.half_tflops / its.half_tflops, mine.memory_gbs / its.memory_gbs]
    ratios += [mine.link_gbs / its.link_gbs] if linked else []
    return float(math.prod(ratios) ** (1 / len(ratios)))


def _rounded(permille: float) -> int:
    within = min(_MOST, max(_LEAST, permille))
    return round(round(within, _DIGITS - 1 - math.floor(math.log10(within))))


def _within(permille: float) -> int:
    return min(_MOST, max(_LEAST, round(permille)))
