"""The three queues: who falls, who rises, and what is learned of durations."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.elastic.kinds import ElasticKind, KindEvidence, attended_program, judge_kind
from app.core.elastic.queues import (
    COLD_BATCH_S,
    COLD_INTERACTIVE_S,
    PriorityQueue,
    QueuePlace,
    QueueThresholds,
    demoted,
    expected_remaining_s,
    next_class_gpu_s,
    promoted,
    service_class,
)
from app.core.elastic.rules import LITERAL, MENDED

INTERACTIVE, BATCH = ElasticKind.INTERACTIVE, ElasticKind.BATCH
COLD = QueueThresholds()


def test_a_wrong_label_costs_twice_the_mean_of_an_interactive_job() -> None:
    """Then it stands with the batch jobs, and its counter begins again."""
    place = QueuePlace.of(INTERACTIVE).after_running(2 * COLD_INTERACTIVE_S - 1, 1, 1, MENDED)
    assert demoted(place, COLD) == place
    fallen = demoted(place.after_running(1, 1, 1, MENDED), COLD)
    assert (fallen.queue, fallen.executed_s) == (PriorityQueue.BATCH, 0.0)


def test_nobody_falls_for_having_been_shrunk() -> None:
    """Point 4: the literal rule counts seconds with a GPU, ours seconds at the size that was asked for."""
    ours = QueuePlace.of(BATCH).after_running(2 * COLD_BATCH_S, 1, 8, MENDED)
    theirs = QueuePlace.of(BATCH).after_running(2 * COLD_BATCH_S, 1, 8, LITERAL)
    assert demoted(ours, COLD).queue is PriorityQueue.BATCH
    assert demoted(theirs, COLD).queue is PriorityQueue.LONG


def test_a_promoted_job_stays_only_where_its_counter_is_reset() -> None:
    """Point 4."""
    long = QueuePlace(PriorityQueue.LONG, 50.0, 4000.0)
    waited_s = 2 * COLD_BATCH_S
    ours, theirs = (promoted(long, waited_s, COLD, rules) for rules in (MENDED, LITERAL))
    assert ours.queue is theirs.queue is PriorityQueue.BATCH
    assert demoted(ours.after_running(1, 1, 1, MENDED), COLD).queue is PriorityQueue.BATCH
    assert demoted(theirs.after_running(1, 1, 1, LITERAL), COLD).queue is PriorityQueue.LONG
    assert promoted(long, waited_s - 1, COLD, MENDED) == long
    assert promoted(QueuePlace.of(BATCH), 1e9, COLD, MENDED) == QueuePlace.of(BATCH)


@given(st.floats(0, 1e12))
def test_who_is_promoted_often_enough_comes_before_everybody(served_gpu_s: float) -> None:
    """So nobody waits for ever behind newcomers."""
    place = QueuePlace(PriorityQueue.LONG, 0.0, served_gpu_s)
    for _ in range(60):
        place = promoted(QueuePlace(PriorityQueue.LONG, 0.0, place.served_gpu_s), math.inf, COLD, MENDED)
    assert service_class(place, MENDED) == 0


def test_means_are_estimated_anew_every_thousand_jobs() -> None:
    found = COLD
    for number in range(999):
        found = found.after(INTERACTIVE if number % 2 else BATCH, 60.0 if number % 2 else 600.0)
    assert (found.interactive_s, found.batch_s) == (COLD_INTERACTIVE_S, COLD_BATCH_S)
    found = found.after(BATCH, 600.0)
    assert (found.interactive_s, found.batch_s, found.counts) == (60.0, 600.0, (0, 0))


@pytest.mark.parametrize("wrong_s", [math.nan, math.inf, -1.0])
def test_a_time_that_is_none_spoils_no_mean(wrong_s: float) -> None:
    assert COLD.after(BATCH, wrong_s) == COLD
    if wrong_s < math.inf:
        with pytest.raises(ValueError, match="0 seconds or more"):
            QueuePlace.of(BATCH).after_running(wrong_s, 1, 1, MENDED)


def test_a_kind_of_which_none_has_ended_keeps_its_mean() -> None:
    found = COLD
    for _ in range(1000):
        found = found.after(BATCH, 10.0)
    assert (found.interactive_s, found.batch_s) == (COLD_INTERACTIVE_S, 10.0)


@given(st.floats(0, 1e15))
def test_a_class_ends_where_the_next_begins(served_gpu_s: float) -> None:
    place = QueuePlace(PriorityQueue.BATCH, 0.0, served_gpu_s)
    ends = next_class_gpu_s(place, MENDED)
    assert served_gpu_s < ends
    after = QueuePlace(PriorityQueue.BATCH, 0.0, ends)
    assert service_class(after, MENDED) == service_class(place, MENDED) + 1
    assert service_class(place, LITERAL) == 0
    assert next_class_gpu_s(place, LITERAL) == math.inf


def test_what_is_left_is_the_mean_first_and_then_as_long_again() -> None:
    place = QueuePlace.of(BATCH)
    assert [expected_remaining_s(place, one, COLD) for one in (0.0, 1000.0, 9000.0)] == [3600.0, 2600.0, 9000.0]


@pytest.mark.parametrize(
    ("known", "kind", "word"),
    [
        (KindEvidence(), BATCH, "nothing"),
        (KindEvidence(label=BATCH, steps=1), BATCH, "labelled"),
        (KindEvidence(label=BATCH, attended="pdb"), BATCH, "labelled"),
        (KindEvidence(attended="pdb", steps=9_000, step_s=100.0), INTERACTIVE, "runs in pdb"),
        (KindEvidence(steps=20), INTERACTIVE, "20 steps"),
        (KindEvidence(steps=20, step_s=100.0), BATCH, "2000 s"),
        (KindEvidence(usual_s=5.0, past_jobs=3), INTERACTIVE, "what 3 earlier jobs"),
        (KindEvidence(usual_s=5.0, past_jobs=2), BATCH, "nothing"),
        (KindEvidence(usual_s=math.nan, past_jobs=9), BATCH, "nothing"),
        (KindEvidence(usual_s=1e5, past_jobs=3, steps=5), BATCH, "earlier jobs"),
        (KindEvidence(usual_s=1e5, past_jobs=3, steps=5, predicted_step_s=9.0), INTERACTIVE, "45 s"),
        (KindEvidence(steps=200, predicted_step_s=1.0, step_s=9.0), BATCH, "1800 s"),
        (KindEvidence(steps=-3, step_s=math.nan), BATCH, "nothing"),
    ],
)
def test_the_strongest_evidence_decides_and_is_named(known: KindEvidence, kind: ElasticKind, word: str) -> None:
    found = judge_kind(known)
    assert found.kind is kind
    assert word in found.because


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (["python", "-m", "debugpy", "--listen", "5678", "train.py"], "debugpy"),
        (["python", "-Xfrozen_modules=off", "-m", "pdb", "train.py"], "pdb"),
        (["/usr/bin/ipython", "train.py"], "ipython"),
        (["jupyter", "lab", "--port", "8888"], "jupyter"),
        (["bash", "-c", "cd code && python -m pudb train.py"], "pudb"),
        (["bash", "-c", "pip install x; jupyter-lab"], "jupyter-lab"),
        (["env", "CUDA_LAUNCH_BLOCKING=1", "cuda-gdb", "--args", "python"], "cuda-gdb"),
        (["env", "gdb", "--args", "python"], "gdb"),
        (["uv", "run", "ipython", "train.py"], "ipython"),
        (["python", "train.py", "--name", "pdb"], None),
        (["python", "train.py", "--name=x", "pdb"], None),
        (["python", "pdb.py"], None),
        (["torchrun", "train.py"], None),
        ([], None),
        (["", " "], None),
        ([None, 3, ["pdb"]], None),
        (["x" * 10_000, "-m", "pdb"], None),
        (["true"] * 100_000, None),
    ],
)
def test_a_debugger_or_notebook_is_seen_where_a_program_stands(command: list[object], found: str | None) -> None:
    assert attended_program(command) == found
