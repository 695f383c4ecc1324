"""`benchmarks.policy`: the goal holds for jobs of one GPU and for jobs of several, each by itself."""

from __future__ import annotations

from benchmarks import policy


def test_each_case_with_the_goal_has_its_own_least_gap() -> None:
    """A good case does not hide a bad one, and the others have no goal."""
    rows = [{"case": case, "gap": gap} for case, gap in (("a", 0.9), ("e", 0.6), ("e", 0.8), ("b", 0.1))]
    assert policy.least_gaps(rows) == {"a": 0.9, "e": 0.6}
    assert policy.least_gaps(rows[:1]) == {"a": 0.9}


def test_several_gpus_for_each_job_as_the_trace_says() -> None:
    """Generated jobs of a cluster, played with as many GPUs as they ask for: `allpass` meets the goal."""
    (trace,) = policy.traces([], ["kalos"], 60)
    assert max(job.gpus for job in trace.jobs) > 8
    found = policy.row(trace, "e", 84.0, range(1))
    assert (found["jobs"], found["case"]) == (60, "e")
    assert policy.GOAL <= found["gap"] <= 1
