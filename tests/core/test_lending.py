"""GPUs of elastic jobs are lent to jobs that wait, and come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.lending import REST_MS, TAKE_MS, ElasticRun, Lending, lend
from app.core.model.job import Affinity, Caps, JobState, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.snapshot import JobView, NodeView
from app.core.resizing import GpusHeld, GpusTold
from tests.core.samples import NOW_MS, job, node, run, snapshot

BEFORE_MS = NOW_MS - REST_MS


def elastic(name: str, *held: int, on: str = "node_a", own: int | None = None, **changes: Any) -> ElasticRun:
    """A run of job_`name` whose training uses just what it holds."""
    all_ = GpusHeld(held, len(held))
    made = ElasticRun(f"run_{name}", f"job_{name}", on, all_, GpusTold(held), own or len(held), BEFORE_MS)
    return replace(made, **changes)


def waits(name: str, gpus: int = 1, **changes: Any) -> JobView:
    return job(name, resources=Resources(gpus_min=gpus, gpus_max=gpus), state=JobState.QUEUED, **changes)


def machine(name: str, gpus: int, *runs: ElasticRun, **changes: Any) -> NodeView:
    taken = {index for one in runs for index in one.held.indices}
    free = tuple(index for index in range(gpus) if index not in taken)
    return node(name, gpu_count=gpus, free_gpus=free, cpus=96, memory_bytes=2**40, **changes)


def board_of(nodes: list[NodeView], runs: list[ElasticRun], line: list[JobView]) -> Board:
    tenants = [
        replace(job(one.job_id), state=JobState.RUNNING, resources=Resources(gpus_min=one.own, gpus_max=one.own))
        for one in runs
    ]
    held = [run(one.run_id, one.job_id, one.node_id, tier=Tier.MARKETPLACE) for one in runs]
    return Board.of(snapshot(jobs=[*tenants, *line], runs=held, nodes=nodes))


def asked(nodes: list[NodeView], runs: list[ElasticRun], line: list[JobView]) -> Lending:
    return lend(board_of(nodes, runs, line), runs, {one.job_id for one in line}, NOW_MS)


def sizes(found: Lending) -> dict[str, int]:
    return {one.run.run_id: one.gpus for one in found.lent}


def test_one_is_lent_to_who_waits_for_one() -> None:
    """And it is said to whom."""
    four = elastic("e", 0, 1, 2, 3)
    found = asked([machine("node_a", 4, four)], [four], [waits("job_w")])
    assert sizes(found) == {"run_e": 3}
    assert [(one.to_job_id, one.reason) for one in found.lent] == [("job_w", "lends 1 of 1 GPU that job_w waits for")]


@pytest.mark.parametrize(
    ("gpus", "then"),
    [(1, {"run_a": 3}), (2, {"run_a": 2}), (3, {"run_a": 1}), (4, {"run_a": 1, "run_b": 1}), (5, {})],
)
def test_whoever_has_most_lends_first_and_nobody_the_last(gpus: int, then: dict[str, int]) -> None:
    """All that is asked for, or nothing."""
    a, b = elastic("a", 0, 1, 2, 3), elastic("b", 4, 5)
    assert sizes(asked([machine("node_a", 6, a, b)], [a, b], [waits("job_w", gpus)])) == then


def test_of_a_range_what_it_needs_is_never_lent() -> None:
    """Whoever has more above its least lends first; where nobody has enough, nothing is lent."""
    a, b = elastic("a", 0, 1, 2, 3, least=3), elastic("b", 4, 5, 6)
    assert sizes(asked([machine("node_a", 7, a, b)], [a, b], [waits("job_w", 3)])) == {"run_a": 3, "run_b": 1}
    assert sizes(asked([machine("node_a", 7, a, b)], [a, b], [waits("job_w", 4)])) == {}
    fixed = elastic("a", 0, 1, 2, 3, least=4)
    assert sizes(asked([machine("node_a", 4, fixed)], [fixed], [waits("job_w")])) == {}


def test_what_is_free_already_is_not_lent() -> None:
    a = elastic("a", 0, 1)
    assert sizes(asked([machine("node_a", 4, a)], [a], [waits("job_w", 3)])) == {"run_a": 1}
    assert sizes(asked([machine("node_a", 4, a)], [a], [waits("job_w", 2)])) == {}


def test_the_machine_that_has_to_lend_least_does() -> None:
    """Each that waits is lent to once, who is due first before the others."""
    a, b = elastic("a", 0, 1, 2, 3), elastic("b", 0, 1, 2, on="node_b")
    nodes = [machine("node_a", 4, a), machine("node_b", 4, b)]
    assert sizes(asked(nodes, [a, b], [waits("job_w", 2)])) == {"run_b": 2}
    late, soon = waits("job_v", 2, deadline_ms=NOW_MS + 9), waits("job_w", 2, deadline_ms=NOW_MS + 1)
    found = asked(nodes, [a, b], [late, soon])
    assert {one.to_job_id: sizes(found)[one.run.run_id] for one in found.lent} == {"job_w": 2, "job_v": 2}


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({"project_id": "proj_other"}, {}),
        ({"affinity": Affinity(apart=frozenset({"app=e"}))}, {}),
        ({"caps": Caps(max_hourly=Money(1))}, {}),
        ({"not_before_ms": NOW_MS + 1}, {}),
        ({"resources": Resources(gpu_type="H100")}, {}),
        ({"resources": Resources(cpus_min=97)}, {}),
        ({}, {"state": NodeState.DRAINING}),
        ({}, {"state": NodeState.UNREACHABLE}),
    ],
)
def test_to_who_could_not_begin_there_nothing_is_lent(changes: dict[str, Any], others: dict[str, Any]) -> None:
    """Another project's, one that is to be apart, that may not pay for it, that rests, or that does not fit."""
    four = elastic("e", 0, 1, 2, 3)
    board = board_of([machine("node_a", 4, four, **others)], [four], [replace(waits("job_w"), **changes)])
    tenant = replace(board.jobs["job_e"], affinity=Affinity(own=frozenset({"app=e"})))
    board.put_job(tenant)
    assert lend(board, [four], {"job_w"}, NOW_MS).lent == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"held": GpusHeld((0, 1, 2, 3), 3)},
        {"told": GpusTold((0, 1, 2))},
        {"told": GpusTold((0, 1, 2, 3), leaving=(5,))},
        {"changed_ms": BEFORE_MS + 1},
    ],
    ids=["asked to leave", "one was lost", "leaving", "has just changed"],
)
def test_where_something_is_under_way_nothing_is_decided(changes: dict[str, Any]) -> None:
    """Neither lent nor given back: what it becomes is not known."""
    four = elastic("e", 0, 1, 2, 3, own=6, **changes)
    assert asked([machine("node_a", 8, four)], [four], [waits("job_w", 8)]).lent == ()
    assert asked([machine("node_a", 8, four)], [four], []).lent == ()


def test_what_nobody_waits_for_comes_back() -> None:
    """To whoever has fewest of its own, up to what it asks for; not while somebody waits who could take it."""
    a, b = elastic("a", 0, own=4), elastic("b", 1, 2, own=4)
    nodes = [machine("node_a", 6, a, b)]
    found = asked(nodes, [a, b], [])
    assert sizes(found) == {"run_a": 3, "run_b": 3}
    assert {one.to_job_id for one in found.lent} == {None}
    assert asked(nodes, [a, b], [waits("job_w", 3)]).lent == ()
    assert sizes(asked([machine("node_a", 16, a, b)], [a, b], [])) == {"run_a": 4, "run_b": 4}


def test_it_grows_by_no_more_than_it_may_pay_for() -> None:
    """A job that asks for a range, on a rented machine with room: up to its limit per hour."""
    a = elastic("a", 0, own=8)
    nodes = [machine("node_a", 8, a, price_per_hour=Money.usd(16))]
    board = board_of(nodes, [a], [])
    assert {one.gpus for one in lend(board, [a], set(), NOW_MS).lent} == {8}
    board.put_job(replace(board.jobs["job_a"], caps=Caps(max_hourly=Money.usd(7))))
    assert {one.gpus for one in lend(board, [a], set(), NOW_MS).lent} == {3}
    board.put_job(replace(board.jobs["job_a"], caps=Caps(max_hourly=Money.usd(2))))
    assert lend(board, [a], set(), NOW_MS).lent == ()


def test_a_gpu_that_is_broken_is_not_tried_again() -> None:
    a = elastic("a", 0, 1, own=4, broken=(2, 3))
    assert asked([machine("node_a", 4, a)], [a], []).lent == ()
    assert sizes(asked([machine("node_a", 5, a)], [a], [])) == {"run_a": 3}


def test_who_leaves_free_what_was_lent_waits_for_something_else() -> None:
    """After a while it is told as such, and the lender has it back."""
    a = elastic("a", 0, 1, 2, own=4)
    line = [waits("job_w")]
    early = replace(a, changed_ms=NOW_MS - TAKE_MS + 1)
    assert asked([machine("node_a", 4, early)], [early], line) == Lending((), frozenset())
    late = replace(a, changed_ms=NOW_MS - TAKE_MS)
    found = asked([machine("node_a", 4, late)], [late], line)
    assert (sizes(found), found.declined) == ({"run_a": 4}, {"job_w"})


counts = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=4)


@given(counts, st.integers(0, 4), st.lists(st.integers(1, 9), max_size=4))
def test_what_is_lent_is_there_and_what_comes_back_is_free(
    tenants: list[tuple[int, int]], free: int, line: list[int]
) -> None:
    """Whatever there is: nobody falls below one GPU or rises above its own, what is given back is free, and whoever is
    lent to can begin with what is free then."""
    runs, index = [], 0
    for number, (held, own) in enumerate(tenants):
        count = min(held, own)
        runs.append(elastic(str(number), *range(index, index + count), own=own))
        index += count
    total = index + free
    jobs = [waits(f"job_w{number}", gpus) for number, gpus in enumerate(line)]
    found = asked([machine("node_a", total, *runs)], runs, jobs)
    after = {one.run_id: one.held.wanted for one in runs} | sizes(found)
    assert all(1 <= after[one.run_id] <= max(one.own, one.held.wanted) for one in runs)
    assert sum(after.values()) <= total
    lent_to = {one.to_job_id for one in found.lent} - {None}
    assert len(lent_to) <= 1
    for name in lent_to:
        assert total - sum(after.values()) >= line[int(str(name).removeprefix("job_w"))]
    directions = {after[one.run_id] > one.held.wanted for one in runs if after[one.run_id] != one.held.wanted}
    assert len(directions) <= 1
