"""The figures of a trace, by hand."""

from __future__ import annotations

import pytest

from app.simulator.traces.describing import describe, quantile
from app.simulator.traces.job import Trace, TraceJob


def test_figures_of_a_small_trace() -> None:
    """Four jobs in 100 s."""
    jobs = [
        TraceJob("a", 0, 60, 1, user="ann"),
        TraceJob("b", 50, 600, 2, user="ann"),
        TraceJob("c", 75, 601, 1, deadline_s=9),
        TraceJob("d", 100, 1139, 8, user="bob"),
    ]
    figures = describe(Trace.of("small", jobs, left_out=3))
    assert (figures.name, figures.jobs, figures.left_out) == ("small", 4, 3)
    assert (figures.span_s, figures.mean_gap_s) == (100, pytest.approx(100 / 3))
    assert (figures.mean_duration_s, figures.p50_duration_s, figures.longest_duration_s) == (600, 600.5, 1139)
    assert figures.share_within_10_min == 0.5
    assert figures.jobs_by_gpus == {1: 2, 2: 1, 8: 1}
    busy = 60 + 1200 + 601 + 8 * 1139
    assert figures.gpu_hours == pytest.approx(busy / 3600)
    assert figures.load_gpus == pytest.approx(busy / 100)
    assert (figures.with_deadline, figures.users) == (1, 2)


def test_a_trace_of_one_instant_has_no_load() -> None:
    """There is no time to divide by."""
    figures = describe(Trace.of("one", [TraceJob("a", 5, 60, 1)]))
    assert (figures.load_gpus, figures.span_s, figures.mean_gap_s) == (None, 0, 0)


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 2.5), (0.9, 3.7), (1, 4)])
def test_quantiles_are_linear(share: float, value: float) -> None:
    """Between the two nearest numbers."""
    assert quantile([1, 2, 3, 4], share) == pytest.approx(value)
