"""Where a live job stands in the three queues, kept as little as can be (ADR 0119). Pure.

What a job has had of GPUs is on record (`JobUse`), so only what cannot be read off is kept: its kind and by what it was
judged, its queue and since when, and what was forgiven as it was promoted. Whoever reads late, or twice, or after a
restart, comes to the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.core.elastic.kinds import ElasticKind, JudgedKind, KindEvidence, KindSource, judge_kind
from app.core.elastic.queues import PriorityQueue, QueuePlace, QueueThresholds, demoted, promoted, service_class
from app.core.elastic.rules import ElasticRules


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a job has had. Since it stands in its queue: `full_s`, seconds at the size that it asks for (at half of it,
    half of them), and `held_s`, seconds with any GPU. Ever: `served_gpu_s`. `stripped_s`: how long it has had none;
    None: it has some, or never had any."""

    full_s: float = 0.0
    held_s: float = 0.0
    served_gpu_s: float = 0.0
    stripped_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueStanding:
    """`since_ms`: since when its use counts towards the next demotion, 0 for all of it; `base_s`: what counts besides.
    `forgiven_gpu_s`: of its GPU time, what does not count any more for the order inside a queue."""

    kind: ElasticKind
    source: KindSource
    because: str
    queue: PriorityQueue
    since_ms: int = 0
    base_s: float = 0.0
    forgiven_gpu_s: float = 0.0

    @property
    def keeps_all(self) -> bool:
        """Whether no GPU is taken from it: its owner calls it interactive, and it has not run for longer than such
        jobs do. A kind that is only inferred takes nothing back of what an owner has offered to lend."""
        return self.queue is PriorityQueue.INTERACTIVE and self.source is KindSource.LABEL

    def place(self, use: JobUse, rules: ElasticRules) -> QueuePlace:
        executed_s = self.base_s + (use.full_s if rules.resets else use.held_s)
        return QueuePlace(self.queue, executed_s, max(0.0, use.served_gpu_s - self.forgiven_gpu_s))

    def service_class(self, use: JobUse, rules: ElasticRules) -> int:
        return service_class(self.place(use, rules), rules)


def first_standing(evidence: KindEvidence) -> QueueStanding:
    """Of a job that nobody has looked at yet, whatever it has run so far."""
    found = judge_kind(evidence)
    return QueueStanding(found.kind, found.source, found.because, QueuePlace.of(found.kind).queue)


def standing_now(
    kept: QueueStanding,
    evidence: KindEvidence,
    use: JobUse,
    *,
    thresholds: QueueThresholds,
    rules: ElasticRules,
    now_ms: int,
) -> QueueStanding:
    """Judged again where there is stronger evidence, demoted or promoted where it is time; else as it was."""
    standing = _judged_again(kept, judge_kind(evidence))
    place = standing.place(use, rules)
    fallen = demoted(place, thresholds)
    if fallen is not place:
        return replace(standing, queue=fallen.queue, since_ms=now_ms, base_s=0.0)
    risen = place if use.stripped_s is None else promoted(place, use.stripped_s, thresholds, rules)
    if risen is place:
        return standing
    forgiven_gpu_s = standing.forgiven_gpu_s + place.served_gpu_s - risen.served_gpu_s
    return replace(standing, queue=risen.queue, since_ms=now_ms, base_s=risen.executed_s, forgiven_gpu_s=forgiven_gpu_s)


def _judged_again(kept: QueueStanding, found: JudgedKind) -> QueueStanding:
    """A kind is judged once by each source, each stronger than the one before, so that it does not change to and fro.
    A job that has been demoted is in the queue where its running time has put it, whatever else it shows."""
    if found.source <= kept.source:
        return kept
    known = replace(kept, source=found.source, because=found.because)
    if found.kind is kept.kind or kept.queue is not QueuePlace.of(kept.kind).queue:
        return known
    return replace(known, kind=found.kind, queue=QueuePlace.of(found.kind).queue)
