"""The three queues of section 4.2, and when a job changes from one to another.

State is plain data that the caller keeps: `QueuePlace` for each job, one `QueueThresholds` for the pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum

from app.core.elastic.kinds import ElasticKind
from app.core.elastic.rules import ElasticRules

RE_ESTIMATED_EVERY = 1000  # ended jobs (section 4.2)
TIMES_THE_MEAN = 2.0  # of every threshold (section 4.2)
COLD_INTERACTIVE_S, COLD_BATCH_S = 600.0, 3600.0  # until the first thousand have ended; the paper says nothing
QUANTUM_GPU_S = 600.0  # of GPU time in the first class of service; each further class is twice as wide


class PriorityQueue(IntEnum):
    """A lower number goes first. Q1 is never preempted."""

    INTERACTIVE = 1
    BATCH = 2
    LONG = 3


@dataclass(frozen=True, slots=True)
class QueueThresholds:
    """Mean durations by kind, and the sums of those that have ended since they were last estimated."""

    interactive_s: float = COLD_INTERACTIVE_S
    batch_s: float = COLD_BATCH_S
    sums_s: tuple[float, float] = (0.0, 0.0)
    counts: tuple[int, int] = (0, 0)

    def after(self, kind: ElasticKind, run_s: float) -> QueueThresholds:
        """With one more job that has ended and ran for so long. A time that is not finite or negative is left out."""
        if not 0 <= run_s < math.inf:
            return self
        short = kind is ElasticKind.INTERACTIVE
        sums = (self.sums_s[0] + run_s * short, self.sums_s[1] + run_s * (not short))
        counts = (self.counts[0] + short, self.counts[1] + (not short))
        if sum(counts) < RE_ESTIMATED_EVERY:
            return replace(self, sums_s=sums, counts=counts)
        return QueueThresholds(
            sums[0] / counts[0] if counts[0] else self.interactive_s,
            sums[1] / counts[1] if counts[1] else self.batch_s,
        )


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a job stands. `executed_s` counts towards the next demotion: seconds in which it held a GPU (`literal`), or
    seconds at the size that it asked for, so that nobody is demoted for having been shrunk (`mended`).
    `served_gpu_s` is the GPU time that counts for the order inside a queue."""

    queue: PriorityQueue
    executed_s: float = 0.0
    served_gpu_s: float = 0.0

    @classmethod
    def of(cls, kind: ElasticKind) -> QueuePlace:
        return cls(PriorityQueue.INTERACTIVE if kind is ElasticKind.INTERACTIVE else PriorityQueue.BATCH)

    def after_running(self, seconds: float, gpus: int, request: int, rules: ElasticRules) -> QueuePlace:
        """After so many seconds with so many GPUs. Raises ValueError for a negative or unknown time."""
        if not seconds >= 0:
            raise ValueError(f"a job runs for 0 seconds or more, not {seconds}")
        counted = seconds * gpus / request if rules.resets else seconds * (gpus > 0)
        return QueuePlace(self.queue, self.executed_s + counted, self.served_gpu_s + seconds * gpus)


def demotion_s(queue: PriorityQueue, thresholds: QueueThresholds) -> float:
    """The executed seconds from which a job leaves this queue for the next one; infinite in the last."""
    means = {PriorityQueue.INTERACTIVE: thresholds.interactive_s, PriorityQueue.BATCH: thresholds.batch_s}
    return TIMES_THE_MEAN * means.get(queue, math.inf)


def demoted(place: QueuePlace, thresholds: QueueThresholds) -> QueuePlace:
    """In the next queue where the threshold is passed, with the counter at zero; else as it was."""
    if place.executed_s < demotion_s(place.queue, thresholds):
        return place
    return replace(place, queue=PriorityQueue(place.queue + 1), executed_s=0.0)


def promotion_wait_s(thresholds: QueueThresholds) -> float:
    """How long a job of the last queue waits without a GPU before it is promoted."""
    return TIMES_THE_MEAN * thresholds.batch_s


def promoted(place: QueuePlace, stripped_s: float, thresholds: QueueThresholds, rules: ElasticRules) -> QueuePlace:
    """From Q3 to Q2 after so many seconds without a GPU; else as it was.

    `mended` starts the counter again and halves what counts as received, so that a job that is promoted often enough
    comes before everybody. `literal` sets the counter back to where it was demoted, so that it falls at once.
    """
    if place.queue is not PriorityQueue.LONG or stripped_s < promotion_wait_s(thresholds):
        return place
    if rules.resets:
        return QueuePlace(PriorityQueue.BATCH, 0.0, place.served_gpu_s / 2)
    return replace(place, queue=PriorityQueue.BATCH, executed_s=demotion_s(PriorityQueue.BATCH, thresholds))


def service_class(place: QueuePlace, rules: ElasticRules, quantum_gpu_s: float = QUANTUM_GPU_S) -> int:
    """The order inside a queue, lowest first: 0 up to one quantum, then one more for each doubling. Always 0 where
    first come is first served. Turns get longer as jobs get older, so that they seldom stop each other."""
    if not rules.least_served or place.served_gpu_s < quantum_gpu_s:
        return 0
    return 1 + int(math.log2(place.served_gpu_s / quantum_gpu_s))


def next_class_gpu_s(place: QueuePlace, rules: ElasticRules, quantum_gpu_s: float = QUANTUM_GPU_S) -> float:
    """The received GPU time at which `service_class` rises; infinite where it never does."""
    if not rules.least_served:
        return math.inf
    return quantum_gpu_s * float(2 ** service_class(place, rules, quantum_gpu_s))


def expected_remaining_s(place: QueuePlace, run_s: float, thresholds: QueueThresholds) -> float:
    """How much longer a job is expected to run that has run for so long, of whose length nothing is known: what is
    left to the mean, or as long again. The second is the mean residual life of a Pareto tail of index 2."""
    mean_s = thresholds.interactive_s if place.queue is PriorityQueue.INTERACTIVE else thresholds.batch_s
    return max(mean_s - run_s, run_s)
