"""Whole nodes are made free by chains of moves, and nothing is ever broken on the way."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.defragmentation import (
    Defragmentation,
    NodeRelease,
    PackedNode,
    PackedTask,
    SearchBounds,
    cheaper_rent,
    least_nodes,
    still_valid,
    whole_nodes,
)

_HOUR_S = 3_600


def _node(name: str, gpus: int = 8, **more: object) -> PackedNode:
    return replace(PackedNode(name, gpus, gpus * 12_000, gpus << 36), **more)  # type: ignore[arg-type]


def _task(name: str, node: str, gpus: int = 1, **more: object) -> PackedTask:
    return replace(PackedTask(name, node, gpus, gpus * 8_000, gpus << 34), **more)  # type: ignore[arg-type]


def _moved(plan: Defragmentation) -> list[tuple[str, str]]:
    return [(move.task_id, move.target_id) for move in plan.moves]


def _generated(seed: int) -> tuple[list[PackedNode], list[PackedTask]]:
    chance = random.Random(seed)
    nodes, tasks = [], []
    for number in range(chance.randint(0, 7)):
        node = _node(
            f"n{number}", chance.choice((4, 8)), version=number, labels=frozenset(chance.choice(("", "a", "b")))
        )
        price_micros, paid_until_s = chance.randint(0, 9_000_000), chance.randint(0, 9_000)
        nodes.append(replace(node, price_micros_per_hour=price_micros, paid_until_s=paid_until_s))
        free, cpus_milli, groups = node.gpus, node.cpus_milli, set[str | None]()
        for order in range(chance.randint(0, 4)):
            task = _task(f"t{number}-{order}", node.id, chance.randint(0, 4), version=order)
            task = replace(task, locked=chance.random() < 0.2, cpus_milli=chance.randint(0, 40_000))
            task = replace(task, requires=node.labels if chance.random() < 0.5 else frozenset())
            task = replace(task, ends_s=chance.randint(0, 90_000), move_cost_micros=chance.randint(0, 500_000))
            group = chance.choice((None, None, "x", "y"))
            task = replace(task, apart=None if group in groups else group)
            if task.gpus <= free and task.cpus_milli <= cpus_milli:
                free, cpus_milli = free - task.gpus, cpus_milli - task.cpus_milli
                groups.add(task.apart)
                tasks.append(task)
    return nodes, tasks


_fleets = st.integers(0, 1 << 32).map(_generated)


def _executed(nodes: list[PackedNode], tasks: list[PackedTask], releases: tuple[NodeRelease, ...]) -> list[PackedTask]:
    """The tasks after all moves, one by one; each is on both nodes while it moves, and every rule holds then."""
    node_of, now = {node.id: node for node in nodes}, {task.id: task for task in tasks}
    for release in releases:
        in_use = {one.node_id for one in now.values()}  # in a chain of moves a node is left, and others come to it
        for move in release.moves:
            task, target = now[move.task_id], node_of[move.target_id]
            there = [one for one in now.values() if one.node_id == target.id]
            assert task.node_id == move.source_id != target.id
            assert not task.locked
            assert target.id in in_use, "an empty node became occupied"
            assert task.requires <= target.labels
            assert task.apart is None or task.apart not in {one.apart for one in there}
            assert sum(one.gpus for one in there) + task.gpus <= target.gpus
            assert sum(one.cpus_milli for one in there) + task.cpus_milli <= target.cpus_milli
            assert sum(one.memory_bytes for one in there) + task.memory_bytes <= target.memory_bytes
            now[task.id] = replace(task, node_id=target.id)
        assert release.node_id not in {one.node_id for one in now.values()}, "a release that is not empty"
    return list(now.values())


def _rent_micros(nodes: list[PackedNode], tasks: list[PackedTask]) -> float:
    """What all nodes cost from second 0 until the last task of each has ended."""
    ends = {node.id: node.paid_until_s for node in nodes}
    for task in tasks:
        ends[task.node_id] = max(ends[task.node_id], task.ends_s)
    return sum(node.price_micros_per_hour * ends[node.id] / _HOUR_S for node in nodes)


def test_a_task_goes_where_the_fewest_gpus_stay_free() -> None:
    nodes = [_node("a"), _node("b"), _node("c")]
    tasks = [_task("alone", "a", 2), _task("b1", "b", 4), _task("b2", "b", 1, locked=True), _task("c1", "c", 6)]
    plan = whole_nodes(nodes, [*tasks, _task("c2", "c", 0, locked=True)])
    assert _moved(plan)[0] == ("alone", "c")
    assert plan.releases[0].node_id == "a"
    assert "all 8 GPUs of a are free after 1 move of 2 GPUs in all" in plan.releases[0].reason


def test_a_chain_moves_the_deepest_task_first() -> None:
    """Two GPUs are free on one node and one on another: a task of three fits after one of one has left."""
    nodes = [_node("a"), _node("b"), _node("c")]
    tasks = [_task("three", "a", 3)]
    tasks += [_task("b6", "b", 5, locked=True), _task("one", "b", 1), _task("c7", "c", 7, locked=True)]
    assert _moved(whole_nodes(nodes, tasks)) == [("one", "c"), ("three", "b")]
    assert whole_nodes(nodes, tasks, SearchBounds(depth=1)).moves == ()


def test_a_cycle_is_not_begun() -> None:
    """Two tasks that could only change places need a third place, which there is not."""
    nodes = [_node("a", 4), _node("b", 4)]
    tasks = [
        _task("a1", "a", 2),
        _task("a2", "a", 2, locked=True),
        _task("b1", "b", 2),
        _task("b2", "b", 2, locked=True),
    ]
    assert whole_nodes(nodes, tasks).moves == ()


@pytest.mark.parametrize(
    "hindrance",
    [
        {"locked": True},
        {"requires": frozenset({"H100"})},
        {"apart": "x"},
        {"cpus_milli": 90_000},
        {"memory_bytes": 8 << 36},
    ],
)
def test_what_may_not_move_stays(hindrance: dict[str, object]) -> None:
    nodes = [_node("a", labels=frozenset({"H100"})), _node("b")]
    tasks = [_task("t", "a", 1), _task("u", "b", 2, apart="x", locked=True)]
    assert _moved(whole_nodes(nodes, tasks)) == [("t", "b")]
    assert whole_nodes(nodes, [replace(tasks[0], **hindrance), tasks[1]]).moves == ()  # type: ignore[arg-type]


def test_one_bad_item_harms_no_other() -> None:
    nodes = [_node("a"), _node("b"), _node("full", 1), _node("negative", -1)]
    tasks = [_task("t", "a"), _task("u", "b", 2), _task("v", "full", 3), _task("w", "nowhere"), _task("x", "b", 0)]
    plan = whole_nodes(nodes, [*tasks, _task("nan", "full", cpus_milli=float("nan"))])
    assert plan.left_out == ("w", "full", "negative")
    assert _moved(plan) == [("t", "b")]


def test_empty_and_impossible_fleets() -> None:
    assert whole_nodes([], []) == Defragmentation()
    assert whole_nodes([_node("a")], []).moves == ()
    assert whole_nodes([_node("a")], [_task("t", "a", 1 << 60)]).left_out == ("a",)
    assert cheaper_rent([], [], 0) == Defragmentation()
    for wrong in ({"depth": 0}, {"partition_nodes": 0}, {"rounds": -1}, {"max_moves": -1}):
        with pytest.raises(ValueError, match="no search"):
            SearchBounds(**wrong)


@settings(max_examples=150, deadline=None)
@given(_fleets, st.integers(1, 4), st.integers(0, 6), st.sampled_from((2, 3, 500)))
def test_every_step_is_within_capacity(
    fleet: tuple[list[PackedNode], list[PackedTask]], depth: int, max_moves: int, partition: int
) -> None:
    nodes, tasks = fleet
    plan = whole_nodes(nodes, tasks, SearchBounds(partition, depth, max_moves=max_moves))
    after = _executed(nodes, tasks, plan.releases)
    before_count, after_count = (len({task.node_id for task in some}) for some in (tasks, after))
    assert before_count - after_count == len(plan.releases)
    assert len(plan.moves) <= max_moves
    assert all(len(release.moves) >= 1 for release in plan.releases)


@settings(max_examples=150, deadline=None)
@given(_fleets)
def test_a_plan_that_is_settled_leaves_nothing_to_do(fleet: tuple[list[PackedNode], list[PackedTask]]) -> None:
    nodes, tasks = fleet
    plan = whole_nodes(nodes, tasks, SearchBounds(rounds=20))
    assert plan.settled
    assert whole_nodes(nodes, _executed(nodes, tasks, plan.releases)).releases == ()


@settings(max_examples=200, deadline=None)
@given(_fleets)
def test_rent_that_is_ended_saves_what_is_told(fleet: tuple[list[PackedNode], list[PackedTask]]) -> None:
    nodes, tasks = fleet
    plan = cheaper_rent(nodes, tasks, now_s=0)
    after = _executed(nodes, tasks, plan.releases)
    told = sum(release.saved_micros - release.cost_micros for release in plan.releases)
    price_of = {task.id: task.move_cost_micros for task in tasks}
    real = _rent_micros(nodes, tasks) - _rent_micros(nodes, after) - sum(price_of[move.task_id] for move in plan.moves)
    assert abs(told - real) <= 2 * len(nodes) * (1 + len(plan.releases))
    assert all(release.saved_micros > release.cost_micros for release in plan.releases)


def test_a_node_is_released_only_where_that_pays() -> None:
    """Of an hour at 3 dollars that is left, 2.90 are saved; not where the hour is paid, or a move costs more."""
    nodes = [_node("a", price_micros_per_hour=3_000_000), _node("b", price_micros_per_hour=3_000_000)]
    tasks = [_task("t", "a", ends_s=_HOUR_S, move_cost_micros=100_000), _task("u", "b", 2, ends_s=9 * _HOUR_S)]
    (release,) = cheaper_rent(nodes, tasks, now_s=0).releases
    assert (release.node_id, release.saved_micros, release.cost_micros) == ("a", 3_000_000, 100_000)
    assert release.reason == "ending the rent of a now saves $3.00; it takes 1 move at $0.10"
    paid = [replace(nodes[0], paid_until_s=_HOUR_S), nodes[1]]
    dear = [replace(tasks[0], move_cost_micros=3_000_000), replace(tasks[1], locked=True)]
    assert cheaper_rent(paid, [tasks[0], dear[1]], now_s=0).releases == ()
    assert cheaper_rent(nodes, dear, now_s=0).releases == ()
    assert cheaper_rent(nodes, tasks, now_s=0, least_gap=0.6).releases == ()


def test_a_target_that_is_kept_longer_is_a_cost() -> None:
    nodes = [_node(name, price_micros_per_hour=2_000_000) for name in "ab"]
    tasks = [_task("t", "a", ends_s=5 * _HOUR_S), _task("u", "b", 2, ends_s=3 * _HOUR_S, locked=True)]
    (release,) = cheaper_rent(nodes, tasks, now_s=0).releases
    assert (release.saved_micros, release.cost_micros) == (10_000_000, 4_000_000)
    assert "keeps other nodes for $4.00 longer" in release.reason
    assert cheaper_rent(nodes, tasks, now_s=0, least_return=2.6).releases == ()


@settings(max_examples=100, deadline=None)
@given(_fleets, st.data())
def test_what_is_left_of_a_stale_plan_can_be_executed(
    fleet: tuple[list[PackedNode], list[PackedTask]], data: st.DataObject
) -> None:
    nodes, tasks = fleet
    plan = whole_nodes(nodes, tasks)
    tasks_now = {task.id: task.version for task in tasks}
    nodes_now = {node.id: node.version for node in nodes}
    assert still_valid(plan, tasks_now, nodes_now) == plan.releases
    if not plan.moves:
        return
    changed = data.draw(st.sampled_from(plan.moves)).task_id
    kept = still_valid(plan, tasks_now | {changed: -1}, nodes_now)
    assert changed not in {move.task_id for release in kept for move in release.moves}
    _executed(nodes, tasks, kept)
    assert still_valid(plan, tasks_now, {}) == ()


@settings(max_examples=60, deadline=None)
@given(_fleets)
def test_no_plan_goes_below_the_bound(fleet: tuple[list[PackedNode], list[PackedTask]]) -> None:
    nodes, tasks = fleet
    own = {node.id: node.labels for node in nodes}
    tasks = [replace(task, requires=own[task.node_id] | {"own"}) for task in tasks]
    nodes = [replace(node, labels=node.labels | {"own"}) for node in nodes]
    by_kind = [replace(n, labels=n.labels | {f"kind-{'-'.join(sorted(n.labels))}"}) for n in nodes]
    exact = {node.id: node.labels for node in by_kind}
    tasks = [replace(task, requires=exact[task.node_id]) for task in tasks]
    after = _executed(by_kind, tasks, whole_nodes(by_kind, tasks).releases)
    assert least_nodes(by_kind, tasks) <= len({task.node_id for task in after})


def test_partitions_are_solved_apart_and_other_ones_each_round() -> None:
    """With partitions of two nodes several rounds still bring forty single tasks together."""
    nodes = [_node(f"n{number}") for number in range(40)]
    tasks = [_task(f"t{number}", f"n{number}") for number in range(40)]
    one, five = (whole_nodes(nodes, tasks, SearchBounds(partition_nodes=2, rounds=count)) for count in (1, 5))
    assert len(one.releases) == 20
    assert len(five.releases) > 30
