"""A target for each run whose machine ends: in time, the cheapest, and only for those who need one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.leaving import EndingNode, ending_node, leave_ending
from app.core.model.job import Caps, JobState
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import ActionKind, Migrate, MoveOut
from app.core.policy import MoveCost, PolicyConfig
from tests.core.samples import (
    CLOUD,
    CONFIG,
    MARKET,
    NOW_MS,
    OFFERS,
    SERVERLESS,
    job,
    node,
    offer,
    on_serverless,
    run,
    snapshot,
)

PREPARE_MS, SAVING_MS, MARGIN_MS = 20_000, 300_000, 900_000
MAKES = replace(
    CONFIG, capabilities=CONFIG.capabilities | {ActionKind.MIGRATE}, moves=MoveCost(42_000, 42_000, PREPARE_MS)
)


def ends_in(left_ms: int, node_id: str = "node_a") -> EndingNode:
    return EndingNode(node_id, left_ms, MARGIN_MS, SAVING_MS)


def leave(
    left_ms: int = MARGIN_MS, *, config: PolicyConfig = MAKES, ran_ms: int = 1_000_000, **parts: Any
) -> tuple[Migrate | MoveOut, ...]:
    """What is decided for the run of `job_a` on `node_a`, which ends."""
    view = parts.pop("job_view", job("job_a", JobState.RUNNING))
    source, held = on_serverless(view, ran_ms)
    held = replace(held, state=NodeState.DRAINING)
    nodes = [held, *parts.pop("nodes", ())]
    runs = [source, *parts.pop("runs", ())]
    seen = snapshot(jobs=[view], runs=runs, nodes=nodes, offers=parts.pop("offers", OFFERS))
    return leave_ending(Board.of(seen), config, [ends_in(left_ms)])


def test_the_cheapest_that_comes_in_time_is_taken() -> None:
    """A marketplace node, with a reason that says why and what."""
    (move,) = leave()
    assert isinstance(move, MoveOut)
    assert (move.offer, move.gpu_indices, move.kind) == (MARKET, (0,), ActionKind.MIGRATE)
    assert move.reason == (
        "moves to local A100 at $0.74/h, the only one of the marketplace offers that fit, ready in about 36 s: its "
        "machine ends in 15 min"
    )
    assert move.versions == (("job_a", 1), ("run_a", 1))


def test_a_free_node_is_taken_before_any_is_rented() -> None:
    """With the GPUs that it has free."""
    (move,) = leave(nodes=[node("node_free", gpu_count=2)])
    assert isinstance(move, Migrate)
    assert (move.node_id, move.gpu_indices) == ("node_free", (0,))


def test_what_would_come_too_late_is_not_taken() -> None:
    """Serverless is a target like any other; where nothing comes in time there is none."""
    (move,) = leave(SAVING_MS + PREPARE_MS + MARKET.startup_ms - 1)
    assert isinstance(move, MoveOut)
    assert move.offer == SERVERLESS
    assert leave(SAVING_MS + PREPARE_MS + SERVERLESS.startup_ms - 1) == ()


def test_a_slow_machine_is_rented_sooner() -> None:
    """So that it is prepared a margin before the end, and not before that."""
    early = MARGIN_MS + PREPARE_MS + CLOUD.startup_ms
    assert leave(early + 1, offers=[CLOUD]) == ()
    (move,) = leave(early, offers=[CLOUD])
    assert isinstance(move, MoveOut)
    assert move.offer == CLOUD


@pytest.mark.parametrize(
    "changes",
    [
        {"leaving": True},
        {"not_moved_before_ms": NOW_MS + 1},
        {"state": JobState.CHECKPOINTING},
        {"caps": Caps(Money.usd("1"), None), "spent": Money.usd("1")},
        {"total_run_ms": 1_000_000 + (MARGIN_MS - SAVING_MS) // 2},
    ],
)
def test_a_job_that_leaves_rests_or_will_be_over_gets_no_target(changes: dict[str, Any]) -> None:
    """Paused or ending, called off a moment ago, at its limit, or done in half of the time that is left."""
    assert leave(job_view=job("job_a", **{"state": JobState.RUNNING, **changes})) == ()


def test_a_job_that_is_predicted_to_need_longer_moves() -> None:
    """A prediction has to be wrong by half before a job is surprised by the end of its machine."""
    total_run_ms = 1_000_000 + (MARGIN_MS - SAVING_MS) // 2 + 1
    assert len(leave(job_view=job("job_a", JobState.RUNNING, total_run_ms=total_run_ms))) == 1


def test_a_job_that_moves_already_gets_no_second_target() -> None:
    """Its policy, or an earlier look, has seen to it."""
    target = run("run_b", "job_a", "node_b", running_since_ms=None)
    assert leave(runs=[target], nodes=[node("node_b", free_gpus=())]) == ()


def test_after_a_machine_that_could_not_be_had_only_free_nodes_are_tried() -> None:
    """Until the back-off is over."""
    view = job("job_a", JobState.RUNNING, not_before_ms=NOW_MS + 1)
    assert leave(job_view=view) == ()
    assert len(leave(job_view=view, nodes=[node("node_free")])) == 1


def test_limits_hold_for_targets_too() -> None:
    """No node and no serverless place more than the settings allow."""
    full = replace(MAKES, serverful_limit=0, serverless_limit=1)
    assert leave(config=full) == ()
    (move,) = leave(config=replace(full, serverless_limit=2))
    assert isinstance(move, MoveOut)
    assert move.offer == SERVERLESS


def test_two_that_leave_do_not_take_one_place() -> None:
    """The one whose machine ends first chooses first."""
    jobs = [job(f"job_{name}", JobState.RUNNING) for name in "ab"]
    pairs = [on_serverless(view, 1_000_000) for view in jobs]
    held = [replace(one, state=NodeState.DRAINING) for _, one in pairs]
    seen = snapshot(jobs=jobs, runs=[one for one, _ in pairs], nodes=[*held, node("node_free")], offers=OFFERS)
    ending = [ends_in(MARGIN_MS), ends_in(MARGIN_MS - 1, "node_b")]
    first, second = leave_ending(Board.of(seen), MAKES, ending)
    assert (first.job_id, second.job_id) == ("job_b", "job_a")
    assert isinstance(first, Migrate)
    assert isinstance(second, MoveOut)


@given(
    left_ms=st.integers(0, 3_000_000),
    price=st.integers(1, 300),
    startup_ms=st.integers(0, 1_000_000),
    tier=st.sampled_from([Tier.MARKETPLACE, Tier.CONVENTIONAL]),
)
def test_a_target_is_always_in_time_and_none_in_time_is_cheaper(
    left_ms: int, price: int, startup_ms: int, tier: Tier
) -> None:
    """Whatever is on offer, and however near the end is."""
    other = offer("x", tier, f"{price / 100:.2f}", startup_ms=startup_ms)
    offers = (SERVERLESS, other)
    moves = leave(left_ms, offers=offers)
    in_time = [one for one in offers if one.startup_ms + PREPARE_MS + SAVING_MS <= left_ms]
    if not moves:
        assert not in_time or left_ms > min(one.startup_ms for one in in_time) + PREPARE_MS + MARGIN_MS
        return
    (move,) = moves
    assert isinstance(move, MoveOut)
    assert move.offer in in_time
    assert all(move.offer.price_per_hour <= one.price_per_hour for one in in_time)


@pytest.mark.parametrize(
    ("margin_ms", "save_ms", "kept_ms"),
    [(900_000, 102_000, 300_000), (150_000, 102_000, 102_000), (60_000, 102_000, 60_000)],
)
def test_of_the_margin_a_third_is_kept_for_saving_or_what_that_may_take(
    margin_ms: int, save_ms: int, kept_ms: int
) -> None:
    """And never more than all of it."""
    ends = ending_node("node_a", left_ms=margin_ms, margin_ms=margin_ms, save_ms=save_ms)
    assert ends.saving_ms == kept_ms
