"""Jobs and traces: their order, and parts of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.simulator.traces.job import Trace, TraceJob

instants = st.lists(st.integers(0, 50), min_size=1, max_size=20)


def trace_of(*submissions: float) -> Trace:
    return Trace.of("t", [TraceJob(f"j{i:02}", float(at), 10, 2) for i, at in enumerate(submissions)], left_out=4)


@given(submissions=instants)
def test_a_trace_is_sorted(submissions: list[int]) -> None:
    """By submission, then by id, however its jobs are given."""
    keys = [(job.submit_s, job.job_id) for job in trace_of(*submissions).jobs]
    assert keys == sorted(keys)
    assert trace_of(*submissions).span_s == max(submissions) - min(submissions)


@given(submissions=instants, start_s=st.integers(0, 60), most=st.none() | st.integers(1, 25))
def test_a_cut_keeps_the_jobs_from_an_instant_on(submissions: list[int], start_s: int, most: int | None) -> None:
    """As many as wanted, in order, with times from that instant; what was left out before stays counted."""
    whole = trace_of(*submissions)
    cut = whole.cut(start_s=start_s, most_jobs=most)
    wanted = [(job.job_id, job.submit_s - start_s) for job in whole.jobs if job.submit_s >= start_s]
    assert [(job.job_id, job.submit_s) for job in cut.jobs] == wanted[:most]
    assert (cut.name, cut.left_out) == ("t", 4)


def test_the_line_of_a_job_is_no_part_of_it() -> None:
    """Two files with the same jobs in another order hold the same jobs."""
    assert TraceJob("a", 0, 10, 2, line=3) == TraceJob("a", 0, 10, 2, line=9)
    assert TraceJob("a", 0, 10, 2).gpu_seconds == 20


def test_an_empty_trace_has_no_span() -> None:
    """A cut may leave nothing."""
    assert Trace("none", ()).span_s == 0
    assert trace_of(5).cut(start_s=6).jobs == ()
