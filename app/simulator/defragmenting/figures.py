"""What a played pool came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from app.simulator.defragmenting.jobs import HOST_GPUS, PoolJob

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Waits:
    """Of how many jobs; in seconds, on average and the 90th percentile. `unbegun`: those that wait still in the end,
    which count as if they began then."""

    jobs: int
    mean_s: float
    p90_s: float
    unbegun: int


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """Of so many days. Means over time: `partly`: the share of the hosts of which some GPUs are taken and some free;
    `used`: of the GPUs that are taken. Waits: of jobs on less than one host, on one as a whole, and on several.
    `paused`: of the GPU time that was used, what was lost to pauses of moves. `vacated`, `dropped`: hosts that were
    vacated, and releases that were given up, from the beginning on.
    """

    days: float
    partly: float
    used: float
    small: Waits
    whole: Waits
    gangs: Waits
    moves: int
    moved_gpus: int
    paused_gpu_s: float
    paused: float
    vacated: int
    dropped: int


class Watching:
    """Counts from a moment on."""

    def __init__(self, hosts: int, from_ms: int) -> None:
        self._hosts, self._from_ms, self._at_ms = hosts, from_ms, 0
        self._partly_ms = self._used_ms = self._passed_ms = 0
        self._waits: dict[str, list[int]] = {"small": [], "whole": [], "gangs": []}
        self._unbegun = dict.fromkeys(self._waits, 0)
        self._moves = self._moved_gpus = self._paused_ms = 0

    def pass_until(self, now_ms: int, partly: int, used_gpus: int) -> None:
        """As it was until now."""
        passed_ms = now_ms - max(self._at_ms, self._from_ms)
        if passed_ms > 0:
            self._partly_ms += passed_ms * partly
            self._used_ms += passed_ms * used_gpus
            self._passed_ms += passed_ms
        self._at_ms = now_ms

    def waited(self, job: PoolJob, now_ms: int, *, has_begun: bool) -> None:
        if job.submit_ms < self._from_ms:
            return
        name = "gangs" if job.parts > 1 else "whole" if job.part_gpus == HOST_GPUS else "small"
        self._waits[name].append(now_ms - job.submit_ms)
        self._unbegun[name] += not has_begun

    def moved(self, job: PoolJob, now_ms: int, pause_ms: int) -> None:
        if now_ms >= self._from_ms:
            self._moves += 1
            self._moved_gpus += job.gpus
            self._paused_ms += pause_ms * job.gpus

    def figures(self, vacated: int, dropped: int) -> PoolFigures:
        small, whole, gangs = (_waits(self._waits[name], self._unbegun[name]) for name in ("small", "whole", "gangs"))
        passed_ms = max(1, self._passed_ms)
        return PoolFigures(
            days=passed_ms / _DAY_MS,
            partly=self._partly_ms / passed_ms / self._hosts,
            used=self._used_ms / passed_ms / (self._hosts * HOST_GPUS),
            small=small,
            whole=whole,
            gangs=gangs,
            moves=self._moves,
            moved_gpus=self._moved_gpus,
            paused_gpu_s=self._paused_ms / 1000,
            paused=self._paused_ms / max(1, self._used_ms),
            vacated=vacated,
            dropped=dropped,
        )


def _waits(waits_ms: Sequence[int], unbegun: int) -> Waits:
    ordered = sorted(waits_ms)
    if not ordered:
        return Waits(0, 0.0, 0.0, unbegun)
    return Waits(len(ordered), mean(ordered) / 1000, ordered[len(ordered) * 9 // 10] / 1000, unbegun)
