"""The compatibility mode gives every job what the public Tiresias simulator gives it."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.simulator.compat.record import CompatOutcome
from app.simulator.compat.tiresias import SCHEDULES, replay
from app.simulator.traces.job import Trace, TraceJob
from app.simulator.traces.reading import read_trace
from tests.simulator.compat.literal import replayed

DATA = Path(__file__).resolve().parents[1] / "data"
PREEMPTING = ("shortest", "shortest-gpu", "dlas-gpu")
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES)

Line = tuple[int, int, int]  # submitted, runs for, GPUs


def trace_of(*lines: Line) -> Trace:
    """Jobs a, b, c... in the order of a file, whose lines need not be sorted by time."""
    jobs = [TraceJob(chr(97 + i), float(at), float(runs), gpus, line=i + 2) for i, (at, runs, gpus) in enumerate(lines)]
    return Trace.of("by hand", jobs)


def outcomes_of(trace: Trace, schedule: str, gpus: int) -> dict[str, CompatOutcome]:
    return {one.job_id: one for one in replay(trace, schedule, gpus)}


def spans_of(trace: Trace, schedule: str, gpus: int) -> dict[str, tuple[int | None, int | None]]:
    return {one.job_id: (one.start_s, one.finish_s) for one in replay(trace, schedule, gpus)}


@each_schedule
def test_every_job_of_a_replay_by_the_original(schedule: str) -> None:
    """240 jobs on 128 GPUs: starts, ends, preemptions and resumptions are those of the original, job by job."""
    with (DATA / "s240_tiresias.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["schedule"] == schedule]
    expected = {
        row["job_id"]: tuple(int(row[name]) for name in ("start_time", "end_time", "JCT", "preempt", "resume"))
        for row in rows
    }
    found = {
        one.job_id: (one.start_s, one.finish_s, one.jct_s, one.preemptions, one.resumptions)
        for one in replay(read_trace(DATA / "s240.csv"), schedule, 128)
    }
    assert len(expected) == 240
    assert found == expected


jobs = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 5), st.integers(0, 30_000)),
        st.one_of(st.integers(0, 5), st.integers(1, 12_000)),
        st.one_of(st.sampled_from([1, 2, 4, 8]), st.integers(1, 9)),
    ),
    min_size=1,
    max_size=25,
)


@given(lines=jobs, gpus=st.sampled_from([1, 2, 4, 8, 16]), schedule=st.sampled_from(sorted(SCHEDULES)))
@example(lines=[(0, 3300, 1), (1, 5000, 1), (3300, 10, 1)], gpus=1, schedule="dlas-gpu")
@example(lines=[(0, 0, 4), (0, 5, 8), (0, 7, 4), (0, 5, 4)], gpus=8, schedule="shortest")
@settings(max_examples=300)
def test_the_shortcuts_change_nothing(lines: list[Line], gpus: int, schedule: str) -> None:
    """Whatever the jobs, ties and 0 s among them, the result is that of the plain lists."""
    trace = trace_of(*lines)
    found = {
        name: (one.start_s, one.finish_s, one.preemptions, one.resumptions)
        for name, one in outcomes_of(trace, schedule, gpus).items()
    }
    assert found == replayed(trace, schedule, gpus)


def test_the_shortcuts_change_nothing_under_load() -> None:
    """The same for a few hundred jobs that come in bursts and keep the cluster full."""
    chance = random.Random(7)
    lines = [
        (chance.randrange(40) * 120, chance.choice([0, 1, 30, 600, 3250, 8000]), chance.choice([1, 1, 2, 3, 8, 16]))
        for _ in range(250)
    ]
    jobs = [TraceJob(str(i), float(a), float(d), g, line=i) for i, (a, d, g) in enumerate(lines)]
    jobs.sort(key=lambda job: (job.submit_s, job.line))
    trace = Trace("burst", tuple(jobs))
    for schedule in SCHEDULES:
        found = {one.job_id: (one.start_s, one.finish_s) for one in replay(trace, schedule, 32)}
        assert found == {name: result[:2] for name, result in replayed(trace, schedule, 32).items()}, schedule


def test_fifo_blocks_and_fjf_skips() -> None:
    """b needs what a holds: under fifo c waits behind it, under fjf c starts at once."""
    trace = trace_of((0, 100, 3), (1, 10, 4), (2, 10, 1))
    assert spans_of(trace, "fifo", 4) == {"a": (0, 100), "b": (100, 110), "c": (110, 120)}
    assert spans_of(trace, "fjf", 4) == {"a": (0, 100), "b": (100, 110), "c": (2, 12)}


def test_shortest_preempts_and_keeps_order_on_ties() -> None:
    """b preempts the longer a at once; c, equal to what is left of b, comes behind it."""
    trace = trace_of((0, 100, 1), (10, 20, 1), (20, 10, 1))
    assert spans_of(trace, "shortest", 1) == {"a": (0, 130), "b": (10, 30), "c": (30, 40)}
    assert outcomes_of(trace, "shortest", 1)["a"].preemptions == 1


def test_shortest_gpu_weighs_with_gpus() -> None:
    """b has less time left but four times the GPUs: by time it wins, by GPU time it waits."""
    trace = trace_of((0, 100, 1), (0, 60, 4))
    assert spans_of(trace, "shortest", 4)["b"] == (0, 60)
    assert spans_of(trace, "shortest-gpu", 4)["b"] == (100, 160)


def test_a_demotion_lets_the_newcomer_run() -> None:
    """After 3250 GPU seconds a job of one GPU gives way to one that has had less."""
    trace = trace_of((0, 4000, 1), (5, 100, 1))
    assert spans_of(trace, "dlas-gpu", 1) == {"a": (0, 4100), "b": (3250, 3350)}


def test_jobs_on_several_gpus_are_demoted_late() -> None:
    """Four GPUs use up 3250 GPU seconds in 812.5 s; the original looks again at 812 s, and then 609 s later."""
    trace = trace_of((0, 4000, 4), (0, 100, 4))
    assert spans_of(trace, "dlas-gpu", 4)["b"] == (1421, 1521)


def test_a_job_is_ended_early_by_an_arrival_that_noted_its_end() -> None:
    """The original's slip: a is demoted and preempted 50 s before its end, and taken as ended when c arrives then."""
    trace = trace_of((0, 3300, 1), (1, 5000, 1), (3300, 10, 1))
    ended = outcomes_of(trace, "dlas-gpu", 1)["a"]
    assert (ended.finish_s, ended.executed_s, ended.preemptions) == (3300, 3250, 1)
    moved = trace_of((0, 3300, 1), (1, 5000, 1), (3301, 10, 1))
    assert outcomes_of(moved, "dlas-gpu", 1)["a"].executed_s == 3300


@each_schedule
def test_a_job_that_is_too_large_never_starts(schedule: str) -> None:
    """It has neither start nor end; jobs behind it end, except under fifo, which it blocks."""
    found = spans_of(trace_of((0, 10, 8), (1, 10, 2)), schedule, 4)
    assert found == {"a": (None, None), "b": (None, None) if schedule == "fifo" else (1, 11)}


@pytest.mark.parametrize("schedule", ["fifo", "fjf"])
def test_a_job_of_no_seconds_keeps_its_gpus_without_preemption(schedule: str) -> None:
    """The original's slip: its end is booked at an instant that is over, so that the next job waits for ever."""
    assert spans_of(trace_of((0, 0, 1), (1, 10, 1)), schedule, 1) == {"a": (0, None), "b": (None, None)}


@pytest.mark.parametrize("schedule", PREEMPTING)
def test_a_job_of_no_seconds_ends_when_it_starts(schedule: str) -> None:
    """It takes its GPUs and gives them back within the instant."""
    assert spans_of(trace_of((3, 0, 1), (3, 10, 1)), schedule, 1) == {"a": (3, 3), "b": (3, 13)}


@each_schedule
def test_arrivals_of_one_second_keep_the_order_of_the_file(schedule: str) -> None:
    """Equal jobs of one second run in the order of their lines, not of their ids; fractions of seconds are cut off."""
    jobs = [TraceJob("z", 5.9, 10.7, 1, line=2), TraceJob("y", 5.1, 10.2, 1, line=3), TraceJob("x", 5, 10, 1, line=4)]
    found = spans_of(Trace.of("ties", jobs), schedule, 1)
    assert found == {"z": (5, 15), "y": (15, 25), "x": (25, 35)}


@each_schedule
def test_outcomes_come_in_the_order_of_the_trace(schedule: str) -> None:
    """One for each job, whatever order they end in."""
    trace = read_trace(DATA / "s240.csv")
    assert [one.job_id for one in replay(trace, schedule, 128)] == [job.job_id for job in trace.jobs]


@each_schedule
def test_time_on_gpus_is_the_run_time(schedule: str) -> None:
    """Preempted or not, a job that ends has run for as long as it says; GPUs are never given twice."""
    trace = read_trace(DATA / "s240.csv")
    outcomes = replay(trace, schedule, 64)
    assert [one.executed_s for one in outcomes] == [int(job.duration_s) for job in trace.jobs]
    busy = sum(one.executed_s * job.gpus for one, job in zip(outcomes, trace.jobs, strict=True))
    last = max(one.finish_s or 0 for one in outcomes)
    assert busy <= 64 * last


def test_wrong_choices_are_refused() -> None:
    """An unknown schedule is answered with the known ones, a cluster without GPUs with what to give."""
    with pytest.raises(InvalidInput, match=r"policy: 'sjf' is none of fifo, fjf, shortest") as refused:
        replay(trace_of((0, 1, 1)), "sjf", 4)
    assert refused.value.param == "policy"
    with pytest.raises(InvalidInput, match="gpus: 0 is below 1"):
        replay(trace_of((0, 1, 1)), "fifo", 0)
