"""From a trace to the jobs of a simulation: GPUs, deadlines, and what is known."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import InvalidInput
from app.simulator.knowledge import Knowledge
from app.simulator.preparing import Deadlines, tasks_of
from app.simulator.scenario import Task
from app.simulator.traces.job import Trace, TraceJob


def trace(*jobs: TraceJob, many: int = 0) -> Trace:
    more = [TraceJob(f"j{index:04d}", 10.0 * index, 100.0 + index, 1 + index % 8) for index in range(many)]
    return Trace.of("t", [*jobs, *more])


def prepared(seen: Trace, seed: int = 0, **changes: Any) -> tuple[Task, ...]:
    values: dict[str, Any] = {"knowledge": Knowledge.parse("submit:0.2"), "deadlines": Deadlines.parse("1-10")}
    return tasks_of(seen, seed=seed, **(values | changes))


# What may be asked for


@pytest.mark.parametrize(
    ("text", "knowledge"),
    [
        ("none", Knowledge(known=False)),
        ("submit:0.2", Knowledge(error=0.2)),
        ("submit:0", Knowledge(error=0.0)),
        ("after:60:0.2", Knowledge(after_s=60.0, error=0.2)),
        ("after:0.5:0", Knowledge(after_s=0.5, error=0.0)),
    ],
)
def test_knowledge_in_words(text: str, knowledge: Knowledge) -> None:
    """At submission, after so much running, or never; with an error of either sign."""
    assert Knowledge.parse(text) == knowledge


@pytest.mark.parametrize(
    "text",
    ["", "submit", "submit:nan", "submit:-0.1", "submit:x", "submit:0.1:2", "after:60", "after:-1:0.2", "none:1"],
)
def test_unknown_knowledge_is_refused(text: str) -> None:
    """The error names what was given and what would do."""
    with pytest.raises(InvalidInput, match=r"take submit:0\.2 .* after:60:0\.2 .* or none") as refused:
        Knowledge.parse(text)
    assert repr(text) in str(refused.value)
    assert refused.value.param == "knowledge"


@pytest.mark.parametrize(
    ("text", "deadlines"),
    [
        ("trace", Deadlines(None)),
        ("1-10", Deadlines((1.0, 10.0))),
        ("1.5-2x", Deadlines((1.5, 2.0))),
        ("3-3", Deadlines((3.0, 3.0))),
        ("90s", Deadlines(None, 90.0)),
        ("1.5m", Deadlines(None, 90.0)),
        ("6h", Deadlines(None, 21_600.0)),
        ("2d", Deadlines(None, 172_800.0)),
    ],
)
def test_deadlines_in_words(text: str, deadlines: Deadlines) -> None:
    """Drawn in proportion to the run time, the same for all, or the trace's own."""
    assert Deadlines.parse(text) == deadlines


@pytest.mark.parametrize("text", ["", "10-1", "6", "h", "0h", "-1h", "1-", "6 h", "1-10y", "traces"])
def test_unknown_deadlines_are_refused(text: str) -> None:
    """The error names what was given and what would do."""
    with pytest.raises(InvalidInput, match=r"take 1-10 .* 6h .* or trace") as refused:
        Deadlines.parse(text)
    assert repr(text) in str(refused.value)
    assert refused.value.param == "deadlines"


# Jobs


def test_a_job_of_the_trace() -> None:
    """Times become whole milliseconds, in the order of the trace; kinds are kept."""
    jobs = TraceJob("b", 2.0, 0.0001, 4, kind="interactive"), TraceJob("a", 1.0004, 60.5, 8)
    first, second = prepared(trace(*jobs), knowledge=Knowledge.parse("submit:0"), deadlines=Deadlines.parse("1h"))
    assert first == Task("a", 1_000, 60_500, 1, 3_601_000, 60_500, 0, "batch")
    assert (second.job_id, second.work_ms, second.predicted_ms, second.kind) == ("b", 1, 1, "interactive")


def test_gpus() -> None:
    """One each, as in the paper, or as many as the trace says."""
    seen = trace(many=9)
    assert {task.gpus for task in prepared(seen)} == {1}
    assert [task.gpus for task in prepared(seen, gpus="trace")] == [1, 2, 3, 4, 5, 6, 7, 8, 1]


def test_drawn_deadlines() -> None:
    """They lie between the factors times the run time, all over, and not at the end of it."""
    drawn = [(task.deadline_ms - task.submit_ms) / task.work_ms for task in prepared(trace(many=400))]
    assert 1 <= min(drawn) < 1.2
    assert 9.8 < max(drawn) <= 10
    assert sum(drawn) / len(drawn) == pytest.approx(5.5, abs=0.5)


def test_the_traces_own_deadlines() -> None:
    """They are taken from its column; a job without one is named, with its line and a way out."""
    own = Deadlines.parse("trace")
    (task,) = prepared(trace(TraceJob("a", 5.0, 10.0, 1, deadline_s=12.5)), deadlines=own)
    assert task.deadline_ms == 17_500
    with pytest.raises(InvalidInput, match="job a of line 7 has no deadline_s; give it one, or take --deadlines 1-10"):
        prepared(trace(TraceJob("a", 5.0, 10.0, 1, line=7)), deadlines=own)
    with pytest.raises(InvalidInput, match="job a of the trace has no deadline_s"):
        prepared(trace(TraceJob("a", 5.0, 10.0, 1)), deadlines=own)


def test_predictions() -> None:
    """They are the run time within the error, on both sides of it; known when it was said; or not at all."""
    off = [task.predicted_ms / task.work_ms for task in prepared(trace(many=400)) if task.predicted_ms]
    assert len(off) == 400
    assert 0.8 <= min(off) < 0.82
    assert 1.18 < max(off) <= 1.2
    later = prepared(trace(many=3), knowledge=Knowledge.parse("after:60:0.2"))
    assert {task.known_after_ms for task in later} == {60_000}
    assert {task.predicted_ms for task in prepared(trace(many=3), knowledge=Knowledge.parse("none"))} == {None}


def test_the_seed_draws() -> None:
    """The same seed draws the same, another one something else."""
    seen = trace(many=20)
    assert prepared(seen, 1) == prepared(seen, 1)
    assert prepared(seen, 1) != prepared(seen, 2)


def test_draws_do_not_depend_on_one_another() -> None:
    """Who asks for other knowledge gets the same deadlines, and the other way round, so that results compare."""
    seen = trace(many=20)
    usual = prepared(seen)
    for text in ("none", "submit:0", "after:60:0.5"):
        other = prepared(seen, knowledge=Knowledge.parse(text))
        assert [task.deadline_ms for task in other] == [task.deadline_ms for task in usual]
    for text in ("6h", "2-3"):
        other = prepared(seen, deadlines=Deadlines.parse(text))
        assert [task.predicted_ms for task in other] == [task.predicted_ms for task in usual]
    later = prepared(seen, knowledge=Knowledge.parse("after:60:0.2"))
    assert [task.predicted_ms for task in later] == [task.predicted_ms for task in usual]
