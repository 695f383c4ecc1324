"""A board that is kept by deltas equals the one built from its own snapshot, in every index and in every plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.core.board import Board
from app.core.codec import dumps
from app.core.following import KeptBoard as FollowingBoard
from app.core.model.job import JobState, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunState
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named, policy_names
from app.core.policy import PolicyState
from app.core.remaining import remaining_ms
from tests.core.samples import (
    CONFIG,
    MARKET,
    NOW_MS,
    OFFERS,
    SERVERLESS,
    configs,
    job,
    node,
    offer_lists,
    on_serverless,
    run,
    snapshot,
    snapshots,
)

JOBS, RUNS, NODES = (tuple(f"{kind}_{letter}" for letter in "abcd") for kind in ("job", "run", "node"))
PROJECTS = ("proj_a", "proj_b")


def demand(board: Board, due_by_ms: int) -> list[tuple[int, int]]:
    """Deadlines and GPU-milliseconds left, of the jobs that have any."""
    deadlines, left = (column.tolist() for column in board.columns.demand(NOW_MS, due_by_ms))
    assert deadlines == sorted(deadlines)
    return sorted((due, work) for due, work in zip(deadlines, left, strict=True) if work)


def indexes(board: Board) -> dict[str, Any]:
    """All that a board answers, in an order that does not depend on its history."""
    by_project = {"open": board.open_nodes, "ready": board.ready_nodes, "coming": board.coming_nodes}
    lists = {"idle": board.idle_nodes(), "all_coming": board.all_coming(), "all_open": board.all_open()}
    return {
        "snapshot": board.snapshot(),
        "rented_of_level": tuple(board.rented_of_level),
        "demand": demand(board, NOW_MS),
        "placeable": [one.job_id for one in board.placeable()],
        "placeable_count": board.placeable_count,
        "saving": board.saving,
        "queued_after": {at_ms: sorted(one.job_id for one in board.queued_after(at_ms)) for at_ms in (-1, 0, 1)},
        "serverless_runs": board.serverless_runs,
        "counts": (board.serverless_nodes, board.serverful_nodes, board.dearest_gpu_micros()),
        "by_speed": dict(board.runs_by_speed.groups()),
        "run_of": {job_id: board.run_of(job_id) for job_id in JOBS},
        "runs_on": {node_id: (board.runs_on(node_id), board.is_occupied(node_id)) for node_id in NODES},
        "shapes": {project: sorted(board.shapes(project)) for project in PROJECTS},
        "offers": (board.serverless.offers, board.serverful.offers),
        **{name: {project: dict(ask(project)) for project in PROJECTS} for name, ask in by_project.items()},
        **{name: sorted(nodes, key=lambda one: one.node_id) for name, nodes in lists.items()},
    }


class KeptBoard(RuleBasedStateMachine):
    """Views come, change in any way, and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.board = Board(NOW_MS)

    @rule(
        name=st.sampled_from(JOBS),
        state=st.sampled_from(JobState),
        deadline_ms=st.sampled_from([0, 1, NOW_MS + 1]),
        submitted_ms=st.integers(0, 1),
        total_run_ms=st.sampled_from([None, 900_000]),
    )
    def put_job(self, name: str, state: JobState, deadline_ms: int, submitted_ms: int, total_run_ms: int) -> None:
        changes = {"deadline_ms": deadline_ms, "submitted_ms": submitted_ms, "total_run_ms": total_run_ms}
        self.board.put_job(job(name, state, **changes))

    @rule(name=st.sampled_from(JOBS))
    def drop_job(self, name: str) -> None:
        if name in self.board.jobs:
            self.board.drop_job(name)

    @rule(
        name=st.sampled_from(RUNS),
        state=st.sampled_from([RunState.RUNNING, RunState.STOPPING, RunState.STANDBY]),
        tier=st.sampled_from(Tier),
        riders=st.lists(st.sampled_from(JOBS), min_size=1, max_size=2, unique=True),
        node_id=st.sampled_from(NODES),
        since_ms=st.sampled_from([None, NOW_MS - 7_000, NOW_MS - 500_000]),
    )
    def put_run(
        self, name: str, state: RunState, tier: Tier, riders: list[str], node_id: str, since_ms: int | None
    ) -> None:
        live = run(name, "", node_id, state, tier=tier, running_since_ms=since_ms)
        self.board.put_run(replace(live, job_ids=tuple(riders)))

    @rule(name=st.sampled_from(RUNS))
    def drop_run(self, name: str) -> None:
        if name in self.board.runs:
            self.board.drop_run(name)

    @rule(
        name=st.sampled_from(NODES),
        tier=st.sampled_from(Tier),
        state=st.sampled_from(NodeState),
        gpus=st.sampled_from([(1, 0), (1, 1), (2, 1), (2, 2)]),
        project=st.sampled_from(PROJECTS),
        price=st.sampled_from([5, 7]),
    )
    def put_node(
        self, name: str, tier: Tier, state: NodeState, gpus: tuple[int, int], project: str, price: int
    ) -> None:
        count, free = gpus
        given_node = node(name, tier, state, gpu_count=count, free_gpus=tuple(range(free)), project_id=project)
        self.board.put_node(replace(given_node, price_per_hour=Money(price)))

    @rule(name=st.sampled_from(NODES))
    def drop_node(self, name: str) -> None:
        if name in self.board.nodes:
            self.board.drop_node(name)

    @rule(offers=offer_lists)
    def set_offers(self, offers: list[Any]) -> None:
        self.board.set_offers(offers, ())

    @invariant()
    def equals_its_own_snapshot(self) -> None:
        kept, built = indexes(self.board), indexes(Board.of(self.board.snapshot()))
        assert {name: kept[name] for name in kept if kept[name] != built[name]} == {}


KeptBoard.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_a_kept_board_equals_a_built_one = KeptBoard.TestCase


def moved(board: Board, to: Snapshot, random: Any) -> None:
    """Bring the board to another snapshot by deltas, in any order, some of them for nothing."""
    board.now_ms, board.queue_means = to.now_ms, to.queue_means
    steps = [lambda: board.set_offers(to.offers, to.traits)]
    for had, rows, name, put, drop in (
        (board.jobs, to.jobs, "job_id", board.put_job, board.drop_job),
        (board.runs, to.runs, "run_id", board.put_run, board.drop_run),
        (board.nodes, to.nodes, "node_id", board.put_node, board.drop_node),
    ):
        there = {getattr(row, name) for row in rows}
        steps += [lambda drop=drop, row_id=row_id: drop(row_id) for row_id in had if row_id not in there]
        steps += [lambda put=put, row=row: put(row) for row in (*rows, *rows[:2])]
    for step in random.sample(steps, len(steps)):
        step()


@settings(max_examples=60, deadline=None)
@given(
    seen=st.lists(snapshots(), min_size=2, max_size=3),
    config=configs,
    names=st.permutations(policy_names()),
    random=st.randoms(use_true_random=False),
)
def test_a_kept_board_gives_the_same_plans(seen: list[Snapshot], config: Any, names: list[str], random: Any) -> None:
    """Every policy plans the same, byte for byte, on a board with a history and on one built from the snapshot."""
    board = Board.of(seen[0])
    for later in seen[1:]:
        moved(board, later, random)
        assert board.snapshot() == later
        for name in names[:5]:
            kept = policy_named(name).decide(board, PolicyState(), config)
            built = policy_named(name).decide(Board.of(later), PolicyState(), config)
            assert dumps(kept[0]) == dumps(built[0]), name
            assert kept[1] == built[1]


@settings(max_examples=60, deadline=None)
@given(seen=st.lists(snapshots(), min_size=2, max_size=4), config=configs, names=st.permutations(policy_names()))
def test_a_board_that_follows_snapshots_equals_those_that_are_built(
    seen: list[Snapshot], config: Any, names: list[str]
) -> None:
    """Merges, offers and prices with it; and whoever decides on it decides the same."""
    kept = FollowingBoard()
    for later in seen:
        board, built = kept.of(later), Board.of(later)
        assert board.snapshot() == later
        assert indexes(board) == indexes(built)
        for name in names[:3]:
            decided = policy_named(name).decide(board, PolicyState(), config)
            assert decided == policy_named(name).decide(built, PolicyState(), config), name


def test_what_is_the_same_object_is_not_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision among a hundred thousand jobs costs what has changed."""
    one, two = job("job_a", JobState.QUEUED), job("job_b", JobState.QUEUED)
    kept = FollowingBoard()
    board = kept.of(Snapshot(0, jobs=(one, two)))
    put: list[str] = []
    monkeypatch.setattr(board, "put_job", lambda view: put.append(view.job_id))
    assert kept.of(Snapshot(1, jobs=(one, replace(two, step=1)))) is board
    assert put == ["job_b"]


def test_a_board_that_could_not_follow_is_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = FollowingBoard()
    board = kept.of(Snapshot(0))

    def broken(_view: object) -> None:
        raise ValueError("no such job")

    monkeypatch.setattr(board, "put_job", broken)
    seen = Snapshot(1, jobs=(job("job_a", JobState.QUEUED),))
    with pytest.raises(ValueError, match="no such job"):
        kept.of(seen)
    assert kept.of(seen).snapshot() == seen


@settings(max_examples=60, deadline=None)
@given(seen=snapshots(), within_ms=st.sampled_from([0, 200_000, 10**9]))
def test_columns_say_what_the_views_say(seen: Snapshot, within_ms: int) -> None:
    """The demand read from columns is that of the jobs one by one: those due, not paused, and not about to leave."""
    board = Board.of(seen)
    by_ms = NOW_MS + within_ms
    due = [one for one in seen.jobs if one.deadline_ms <= by_ms and one.state != JobState.PAUSED and not one.leaving]
    expected = [
        (one.deadline_ms, remaining_ms(one, board.run_of(one.job_id), NOW_MS) * one.resources.gpus_min) for one in due
    ]
    assert demand(board, NOW_MS + within_ms) == sorted(expected)


def test_columns_grow_and_use_slots_again() -> None:
    """More jobs than there were slots, some of them gone: each has its own row."""
    board = Board(NOW_MS)
    for index in range(200):
        board.put_job(job(f"job_{index}", deadline_ms=index, total_run_ms=1_000 + index))
        if index % 3 == 0:
            board.drop_job(f"job_{index}")
    assert demand(board, NOW_MS) == [(index, 1_000 + index) for index in range(200) if index % 3]


@pytest.mark.parametrize("name", policy_names())
def test_a_decision_leaves_the_board_as_it_was(name: str) -> None:
    """A policy never writes to the board that it reads."""
    held = job("job_b", JobState.RUNNING)
    live, place = on_serverless(held, 400_000)
    rented = node("node_d", gpu_count=2, idle_since_ms=0)
    waiting = [job("job_a"), job("job_c", JobState.WAITING, serverless_used_ms=400_000, resources=Resources(2, 2))]
    board = Board.of(snapshot(jobs=[*waiting, held], runs=[live], nodes=[place, rented], offers=OFFERS))
    before = indexes(board)
    policy_named(name).decide(board, PolicyState(), CONFIG)
    assert indexes(board) == before


# By example


def test_placeable_jobs_come_by_deadline() -> None:
    """Then by submission, then by id; a job that changes its deadline changes its place; others are left out."""
    board = Board()
    for name, deadline_ms, submitted_ms in (("job_a", 9, 0), ("job_b", 5, 2), ("job_c", 5, 1), ("job_d", 5, 1)):
        board.put_job(job(name, deadline_ms=deadline_ms, submitted_ms=submitted_ms))
    board.put_job(job("job_e", JobState.PAUSED, deadline_ms=1))
    assert [one.job_id for one in board.placeable()] == ["job_c", "job_d", "job_b", "job_a"]
    board.put_job(job("job_a", deadline_ms=4))
    board.put_job(job("job_c", JobState.STARTING, deadline_ms=5, submitted_ms=1))
    assert [one.job_id for one in board.placeable()] == ["job_a", "job_d", "job_b"]


def test_while_a_job_moves_its_run_is_the_source() -> None:
    """The prepared target does not hide the source, and takes over when the source is gone."""
    board = Board()
    source, target = (run(name, "job_a", "node_a", state=state) for name, state in MOVE)
    board.put_run(source)
    board.put_run(target)
    assert board.run_of("job_a") == source
    board.drop_run("run_b")
    assert board.run_of("job_a") == target
    board.put_run(source)
    board.drop_run("run_a")
    assert board.run_of("job_a") == source
    board.drop_run("run_b")
    assert board.run_of("job_a") is None


MOVE = (("run_b", RunState.STOPPING), ("run_a", RunState.STANDBY))


def test_nodes_by_what_they_are_good_for() -> None:
    """Ready with a free GPU: open; wholly free and without a run: idle; on their way: coming; gone: forgotten."""
    board = Board()
    for view in (
        node("node_a", gpu_count=2, free_gpus=(1,)),
        node("node_b"),
        node("node_c", state=NodeState.UNKNOWN),
        node("node_d", free_gpus=()),
        node("node_e", state=NodeState.DRAINING, price_per_hour=Money.usd("9")),
        node("node_f", Tier.SERVERLESS),
        node("node_g", state=NodeState.TERMINATED),
    ):
        board.put_node(view)
    assert set(board.open_nodes("proj_a")) == {"node_a", "node_b"}
    assert set(board.ready_nodes("proj_a")) == {"node_a", "node_b", "node_d"}
    assert set(board.coming_nodes("proj_a")) == {"node_c"}
    assert [one.node_id for one in board.idle_nodes()] == ["node_b"]
    assert not board.open_nodes("proj_b")
    assert (board.serverless_nodes, board.serverful_nodes) == (1, 5)
    assert board.dearest_gpu_micros() == 9_000_000
    board.put_node(node("node_e", state=NodeState.FAILED))
    assert (board.serverful_nodes, board.dearest_gpu_micros()) == (4, 700_000)
    board.put_run(run("run_b", "job_b", "node_b", tier=Tier.MARKETPLACE))
    assert board.idle_nodes() == []


def test_the_two_markets() -> None:
    """Offers are split by tier, and replaced as a whole."""
    board = Board.of(snapshot(offers=OFFERS))
    assert board.serverless.offers == (SERVERLESS,)
    assert [one.tier for one in board.serverful.offers] == [Tier.MARKETPLACE, Tier.CONVENTIONAL]
    board.set_offers((MARKET,), ())
    assert (board.serverless.offers, board.serverful.offers) == ((), (MARKET,))
