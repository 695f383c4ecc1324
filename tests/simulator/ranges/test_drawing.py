"""Jobs that take ranges are drawn from generators of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.simulator.options import Options
from app.simulator.ranges.drawing import TaskRange, parallel_speeds, with_ranges
from app.simulator.running import simulate
from app.simulator.traces.generating import generate
from app.simulator.traces.job import Trace, TraceJob, check_jobs
from app.simulator.traces.reading import read_trace, text_of, write_trace
from tests.simulator.scenarios import task


@given(st.integers(0, 1_000), st.floats(0, 1), st.floats(0, 1))
def test_who_takes_a_range_with_a_small_share_does_with_a_large_one(seed: int, one: float, other: float) -> None:
    tasks = [task(f"a{at}", 60, gpus=1 + at % 12, saves=at % 7 != 0) for at in range(40)]
    few, many = (with_ranges(tasks, share, seed) for share in sorted((one, other)))
    assert all(large == small for small, large in zip(few, many, strict=True) if small.elastic is not None)
    assert [replace(a, elastic=None) for a in many] == tasks
    assert not any(a.elastic for a in many if not a.saves or a.gpus > 8)
    assert with_ranges(tasks, 0.0, seed) == tuple(tasks)


def test_what_is_drawn_is_half_to_eight_times_of_what_a_trace_asks_for() -> None:
    drawn = with_ranges([task(f"a{at}", 60, gpus=4) for at in range(50)], 1.0, 0)
    ranges = {(one.elastic.least, one.elastic.most) for one in drawn if one.elastic is not None}
    assert ranges == {(2, 8)}
    singles = with_ranges([task(f"a{at}", 60) for at in range(50)], 1.0, 0)
    assert {(one.elastic.least, one.elastic.most) for one in singles if one.elastic} == {(1, 2), (1, 4), (1, 8)}
    stated = sum(bool(one.elastic.predicted) for one in singles if one.elastic)
    assert 15 < stated < 35


def test_speeds_are_those_of_the_gpus_that_work_is_told_of() -> None:
    assert parallel_speeds(1.0, 1, 4) == (1000, 2000, 3000, 4000)
    assert parallel_speeds(1.0, 4, 4) == (250, 500, 750, 1000)
    assert parallel_speeds(0.0, 2, 3) == (1000, 1000, 1000)
    assert parallel_speeds(0.9, 8, 2)[1] < 1000
    with pytest.raises(ValueError, match="within 0 and 1"):
        parallel_speeds(1.1, 1, 2)


@pytest.mark.parametrize(
    ("least", "most", "speeds"),
    [(0, 1, (1000,)), (2, 1, (1000, 1000)), (1, 9, (1000,) * 9), (1, 2, (1000,)), (1, 2, (1000, 0)), (1, 1, ())],
)
def test_a_range_that_makes_no_sense_is_refused(least: int, most: int, speeds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a range"):
        TaskRange(least, most, speeds)


def test_a_prediction_has_every_number_or_none() -> None:
    with pytest.raises(ValueError, match="a speed above 0 with each number"):
        TaskRange(1, 2, (1000, 1900), (1000,))


def test_where_machines_are_rented_they_have_usual_sizes() -> None:
    assert TaskRange(3, 7, (1000,) * 7).sizes() == {3, 4, 7}
    assert TaskRange(2, 2, (1000,) * 2).sizes() == {2}


# Asked for


def test_a_share_that_is_none_is_refused() -> None:
    for text in ("1.5", "-1", "half", ""):
        with pytest.raises(InvalidInput, match=r"--elastic: .* is no share of the jobs"):
            Options().having("elastic", text)
    assert Options().having("elastic", "0.5").told()["elastic"] == "0.5"
    assert "elastic" not in Options().told()


def test_it_has_no_bound_and_is_not_played_with_merges() -> None:
    asked = Options().having("elastic", "0.5")
    assert not asked.has_bound
    with pytest.raises(InvalidInput, match="--elastic 0"):
        simulate(generate("seren", 5, 0), ["clairvoyant"], asked)
    with pytest.raises(InvalidInput, match="may be merged"):
        simulate(generate("seren", 5, 0), ["allpass"], asked.having("merge-able", "0.5"))


def test_figures_are_there_only_where_there_are_ranges() -> None:
    trace = generate("seren", 10, 0)
    with_, without = (
        simulate(trace, ["allpass"], Options().having("elastic", share), [0])["policies"]["allpass"]
        for share in ("1", "0")
    )
    beside = {
        "range_gpu_hours",
        "resizes",
        "lent_gpus",
        "begun_larger",
        "grown_for_deadlines",
        "moved_smaller",
        "moved_larger",
    }
    assert set(with_) - set(without) == beside
    assert with_["range_gpu_hours"] > 0


# Stated by a trace

STATED = "job_id,submit_time_s,duration_s,num_gpus,max_gpus,parallel\na,0,100,2,4,0.5\nb,0,100,1,,\nc,0,9,1,2,\n"


def test_a_trace_may_state_ranges(tmp_path: Path) -> None:
    """They begin with what they ask for, and are written as they were read. By default each job has one GPU."""
    path = tmp_path / "jobs.csv"
    path.write_text(STATED)
    trace = read_trace(path)
    assert trace.has_ranges
    write_trace(trace, tmp_path / "again.csv")
    assert read_trace(tmp_path / "again.csv").jobs == trace.jobs
    tasks = {one.job_id: one.elastic for one in Options().having("gpus", "trace").tasks(trace, 0)}
    assert tasks == {
        "a": TaskRange(2, 4, parallel_speeds(0.5, 2, 4)),
        "b": None,
        "c": TaskRange(1, 2, parallel_speeds(0.9, 1, 2)),
    }
    asked = Options().having("gpus", "trace")
    assert asked.having("elastic", "1").tasks(trace, 0)[0].elastic == tasks["a"]
    assert not any(one.elastic for one in Options().tasks(trace, 0))
    with pytest.raises(InvalidInput, match="max_gpus"):
        simulate(trace, ["clairvoyant"], asked)
    assert simulate(trace, ["allpass"], asked)["policies"]["allpass"]["range_gpu_hours"] > 0


def test_a_trace_without_ranges_is_written_as_ever(tmp_path: Path) -> None:
    assert "max_gpus" not in text_of(generate("seren", 3, 0))


@pytest.mark.parametrize(
    ("cells", "column"), [("2,1,", "max_gpus"), ("1,9,", "max_gpus"), ("1,x,", "max_gpus"), ("1,2,1.5", "parallel")]
)
def test_what_is_wrong_with_a_range_is_told(tmp_path: Path, cells: str, column: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"job_id,submit_time_s,duration_s,num_gpus,max_gpus,parallel\na,0,100,{cells}\n")
    with pytest.raises(InvalidInput, match=f"line 2, column {column}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("most", "parallel", "name"), [(1, 0.9, "most_gpus"), (9, 0.9, "most_gpus"), (4, 2, "parallel")]
)
def test_jobs_of_a_program_are_checked(most: int, parallel: float, name: str) -> None:
    job = TraceJob("a", 0, 10, 2, most_gpus=most, parallel=parallel)
    with pytest.raises(InvalidInput, match=name):
        check_jobs(Trace.of("own", [job]))
