"""Providers from which nothing is rented now: their offers are not there, and whoever waits is told why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.board import Board
from app.core.model.job import Resources
from app.core.model.node import Tier
from app.core.model.snapshot import ClosedProvider, Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyState
from tests.core.samples import CONFIG, MARKET, SERVERLESS, job, node, offer, snapshot

CLOSED = (ClosedProvider("modal", "it refuses our credentials (401)"), ClosedProvider("vast", "its limit is reached"))
WORDS = (
    "; nothing is rented from modal now: it refuses our credentials (401)"
    "; nothing is rented from vast now: its limit is reached"
)


def reason(seen: Snapshot, policy: str) -> str:
    plan, _state = policy_named(policy).decide(Board.of(seen), PolicyState(), CONFIG)
    (told,) = plan.waiting
    return told.reason


@pytest.mark.parametrize("policy", ["allpass", "fixed-threshold", "cheapest-first"])
def test_a_job_that_nothing_fits_is_told_who_is_closed(policy: str) -> None:
    """With the reason of each, whether there are other offers or none."""
    seen = replace(snapshot(jobs=[job()]), closed=CLOSED)
    assert reason(seen, policy).endswith(WORDS)
    large = replace(snapshot(jobs=[job(resources=Resources(8, 8))], offers=[SERVERLESS, MARKET]), closed=CLOSED)
    assert reason(large, policy).endswith(WORDS)


def test_a_job_that_fits_somewhere_hears_nothing_of_them() -> None:
    """It starts at another provider."""
    seen = replace(snapshot(jobs=[job()], offers=[SERVERLESS]), closed=CLOSED)
    plan, _state = policy_named("allpass").decide(Board.of(seen), PolicyState(), CONFIG)
    assert len(plan.actions) == 1
    assert "nothing is rented" not in plan.actions[0].reason


def test_a_board_keeps_them() -> None:
    """A board made of a snapshot gives that snapshot back."""
    seen = replace(snapshot(jobs=[job()]), closed=CLOSED)
    assert Board.of(seen).snapshot() == seen


def test_free_nodes_with_an_image_of_their_own_are_not_kept_for_jobs_to_come() -> None:
    """A stream of jobs keeps the usual free node and gives the other one back."""
    cheap = offer("ask", Tier.MARKETPLACE, "0.01", startup_ms=36_000)
    nodes = [node("node_a", idle_since_ms=999_000), node("node_b", image="own:1", idle_since_ms=999_000)]
    arrived = [job(f"job_{number}", submitted_ms=999_000 + number) for number in range(4)]
    seen = snapshot(jobs=arrived, nodes=nodes, offers=[SERVERLESS, cheap])
    plan, _state = policy_named("allpass").decide(Board.of(seen), PolicyState(), CONFIG)
    released = [action.node_id for action in plan.actions if action.kind == "release"]
    assert released == ["node_b"]
