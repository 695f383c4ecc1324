"""Where a live job stands: judged, demoted, promoted, whoever looks and however often."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.elastic.kinds import ElasticKind, KindEvidence, KindSource
from app.core.elastic.queues import COLD_BATCH_S, COLD_INTERACTIVE_S, PriorityQueue, QueueThresholds
from app.core.elastic.rules import LITERAL, MENDED, RULES, ElasticRules
from app.core.elastic.standing import JobUse, QueueStanding, first_standing, standing_now

COLD = QueueThresholds()
NOW_MS = 1_000_000
SHORT, UNKNOWN = KindEvidence(steps=20), KindEvidence()
SAID = KindEvidence(label=ElasticKind.INTERACTIVE)


NOTHING = JobUse()


def now(
    kept: QueueStanding, use: JobUse = NOTHING, evidence: KindEvidence = UNKNOWN, rules: ElasticRules = MENDED
) -> QueueStanding:  # fmt: skip
    return standing_now(kept, evidence, use, thresholds=COLD, rules=rules, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("evidence", "kind", "queue", "keeps_all"),
    [
        (UNKNOWN, ElasticKind.BATCH, PriorityQueue.BATCH, False),
        (SHORT, ElasticKind.INTERACTIVE, PriorityQueue.INTERACTIVE, False),
        (SAID, ElasticKind.INTERACTIVE, PriorityQueue.INTERACTIVE, True),
        (KindEvidence(label=ElasticKind.BATCH, steps=3), ElasticKind.BATCH, PriorityQueue.BATCH, False),
    ],
)
def test_who_is_looked_at_first_stands_by_its_kind(
    evidence: KindEvidence, kind: ElasticKind, queue: PriorityQueue, keeps_all: bool
) -> None:
    """What an owner has offered to lend is kept from nobody because of a guess: only a label does that."""
    found = first_standing(evidence)
    assert (found.kind, found.queue, found.keeps_all) == (kind, queue, keeps_all)


def test_all_that_it_ran_before_anybody_looked_counts() -> None:
    """A job that has run for a day when a release with queues begins."""
    first = first_standing(SAID)
    fallen = now(first, JobUse(full_s=86_400.0, held_s=86_400.0, served_gpu_s=86_400.0), SAID)
    assert (fallen.queue, fallen.since_ms, fallen.keeps_all) == (PriorityQueue.BATCH, NOW_MS, False)
    assert now(fallen, JobUse(served_gpu_s=86_400.0), SAID) == fallen


@pytest.mark.parametrize(("rules", "falls"), [(MENDED, False), (LITERAL, True)])
def test_whether_seconds_with_less_than_it_asked_for_count_in_full(rules: ElasticRules, falls: bool) -> None:
    """Point 4 of ADR 0097."""
    use = JobUse(full_s=COLD_BATCH_S, held_s=2 * COLD_BATCH_S, served_gpu_s=COLD_BATCH_S)
    assert (now(first_standing(UNKNOWN), use, rules=rules).queue is PriorityQueue.LONG) is falls


@pytest.mark.parametrize("rules", [MENDED, LITERAL], ids=lambda one: one.name)
def test_who_waits_long_without_a_gpu_rises(rules: ElasticRules) -> None:
    """And falls at once where the rules are literal, as soon as it runs."""
    long = replace(first_standing(UNKNOWN), queue=PriorityQueue.LONG, since_ms=5)
    use = JobUse(full_s=9.0, held_s=9.0, served_gpu_s=4000.0, stripped_s=2 * COLD_BATCH_S)
    assert now(long, replace(use, stripped_s=2 * COLD_BATCH_S - 1), rules=rules) == long
    assert now(long, replace(use, stripped_s=None), rules=rules) == long
    risen = now(long, use, rules=rules)
    assert (risen.queue, risen.since_ms) == (PriorityQueue.BATCH, NOW_MS)
    again = now(risen, JobUse(1.0, 1.0, 4001.0), rules=rules)
    assert again.queue is (PriorityQueue.BATCH if rules.resets else PriorityQueue.LONG)
    assert risen.place(use, rules).served_gpu_s == (2000.0 if rules.resets else 4000.0)


def test_stronger_evidence_judges_again_and_weaker_does_not() -> None:
    """Few steps, then what they take: a kind changes as often as there are sources, and not to and fro."""
    first = first_standing(SHORT)
    slow = now(first, evidence=replace(SHORT, step_s=100.0))
    assert (slow.kind, slow.queue, slow.source) == (ElasticKind.BATCH, PriorityQueue.BATCH, KindSource.PROGRESS)
    assert "2000 s" in slow.because
    assert now(slow, evidence=replace(SHORT, step_s=0.1)) == slow
    assert now(slow, evidence=SHORT) == slow


def test_who_was_demoted_stays_so_whatever_it_shows() -> None:
    """Its running time is what it is."""
    fallen = now(first_standing(SHORT), JobUse(2 * COLD_INTERACTIVE_S, 2 * COLD_INTERACTIVE_S, 1e4), SHORT)
    assert fallen.queue is PriorityQueue.BATCH
    shown = now(fallen, evidence=replace(SHORT, step_s=0.1))
    assert (shown.queue, shown.kind) == (PriorityQueue.BATCH, ElasticKind.INTERACTIVE)


seconds = st.floats(0, 1e7)


@given(
    st.sampled_from(list(RULES.values())), st.integers(0, 10**12), seconds, seconds, st.floats(0, 1e9),
    st.none() | seconds, st.sampled_from([UNKNOWN, SHORT, SAID, replace(SHORT, step_s=3.0)]), st.integers(1, 3),
)  # fmt: skip
def test_however_often_it_is_looked_at_it_comes_to_the_same(
    rules: ElasticRules, now_ms: int, full_s: float, held_s: float, served_gpu_s: float, stripped_s: float | None,
    evidence: KindEvidence, queue: int,
) -> None:  # fmt: skip
    """Whoever looks again, with nothing more had since, changes nothing: leaders change, and rows are read twice. No
    standing goes by more than one queue, and what is forgiven is at most what was had."""
    kept = replace(first_standing(evidence), queue=PriorityQueue(queue))
    use = JobUse(full_s, held_s, served_gpu_s, stripped_s)
    once = standing_now(kept, evidence, use, thresholds=COLD, rules=rules, now_ms=now_ms)
    assert abs(once.queue - kept.queue) <= 1
    assert 0 <= once.forgiven_gpu_s <= served_gpu_s
    assert math.isfinite(once.base_s)
    if once != kept:
        since = JobUse(0.0, 0.0, served_gpu_s, stripped_s if once.queue is not PriorityQueue.LONG else None)
        twice = standing_now(once, evidence, since, thresholds=COLD, rules=rules, now_ms=now_ms + 1)
        if rules.resets:
            assert twice == once
