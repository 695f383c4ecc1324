"""A line that is kept serves jobs in the order in which all of them, sorted anew, would be served."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from app.core.model.job import JobState
from app.core.model.snapshot import JobView
from app.core.queue import edf_key, in_turn
from app.core.waiting_line import WaitingLine
from tests.core.samples import job

_waiting = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(["proj_a", "proj_b", "proj_c"]), st.integers(0, 5)),
    max_size=12,
    unique_by=lambda one: one[0],
)


def views(drawn: list[tuple[int, str, int]]) -> list[JobView]:
    return [
        job(f"job_{number:02}", JobState.QUEUED, project_id=project_id, deadline_ms=deadline_ms)
        for number, project_id, deadline_ms in drawn
    ]


def line_of(jobs: list[JobView]) -> WaitingLine:
    line = WaitingLine()
    for one in jobs:
        line.add(one)
    return line


@given(
    drawn=_waiting,
    gone=st.sets(st.integers(0, 30)),
    has=st.dictionaries(st.sampled_from(["proj_a", "proj_b"]), st.integers(0, 4)),
)
def test_the_order_is_that_of_all_jobs_sorted_by_turns(
    drawn: list[tuple[int, str, int]], gone: set[int], has: dict[str, int]
) -> None:
    """Whatever was in the line before, and whichever machines the projects have."""
    line = line_of(views(drawn))
    for one in views([one for one in drawn if one[0] in gone]):
        line.remove(one)
    left = sorted(views([one for one in drawn if one[0] not in gone]), key=edf_key)
    assert list(line.in_turn(has)) == [one.job_id for one in in_turn(left, Counter(has))]
    assert len(line) == len(left)


def test_who_has_least_comes_first() -> None:
    """The first project has two machines: the other one's jobs come, until it would have as many."""
    jobs = views([(1, "proj_a", 0), (2, "proj_a", 0), (3, "proj_b", 5), (4, "proj_b", 5), (5, "proj_b", 5)])
    assert list(line_of(jobs).in_turn({"proj_a": 2})) == ["job_03", "job_04", "job_01", "job_05", "job_02"]


def test_nobody_behind_is_looked_at() -> None:
    """The first of very many costs as much as the first of two."""
    line = line_of(views([(number, f"proj_{number % 2}", number) for number in range(30)]))
    assert list(islice(line.in_turn({}), 3)) == ["job_00", "job_01", "job_02"]


@given(drawn=_waiting, first=st.integers(0, 30), last=st.integers(0, 30), more=st.integers(0, 30))
def test_ranges_of_ids(drawn: list[tuple[int, str, int]], first: int, last: int, more: int) -> None:
    """Both ends included; ranges may overlap, or hold nobody."""
    line = line_of(views(drawn))
    ranges = [(f"job_{first:02}", f"job_{last:02}"), (f"job_{more:02}", f"job_{more:02}")]
    wanted = {f"job_{one[0]:02}" for one in drawn if first <= one[0] <= last or one[0] == more}
    assert line.within(ranges) == wanted
