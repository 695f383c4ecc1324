"""Projects have their turn: how much one of them waits with decides nothing for another one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.model.node import Tier
from app.core.model.plan import Assign, Provision, Start
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named, policy_names
from app.core.policy import PolicyConfig, PolicyState
from app.core.queue import edf_key, in_turn
from tests.core.samples import ALL_ACTIONS, NOW_MS, OFFERS, job, node, on_serverless, run, snapshot, snapshots

MANY = 200
CONFIG = PolicyConfig(
    ALL_ACTIONS, serverless_budget_ms=300_000, serverless_limit=3, serverful_limit=3, idle_release_ms=0
)
waiting = st.lists(st.tuples(st.sampled_from(["proj_a", "proj_b", "proj_c"]), st.integers(0, 9)), max_size=30)
machines = st.dictionaries(st.sampled_from(["proj_a", "proj_b", "proj_c"]), st.integers(0, 5))


@given(waiting, machines)
def test_whoever_would_have_least_comes_first(given_jobs: list[tuple[str, int]], machines: dict[str, int]) -> None:
    """At every place of the order, the project that is served has, with what came before, no more than any other that
    still waits; and within a project nothing changes."""
    jobs = sorted(
        (job(f"job_{place:02}", project_id=name, deadline_ms=at) for place, (name, at) in enumerate(given_jobs)),
        key=edf_key,
    )
    order = in_turn(jobs, machines)
    have, left = Counter(machines), Counter(one.project_id for one in jobs)
    for one in order:
        assert have[one.project_id] == min(have[name] for name in left if left[name])
        have[one.project_id] += 1
        left[one.project_id] -= 1
    for name in left:
        assert [one for one in order if one.project_id == name] == [one for one in jobs if one.project_id == name]


@given(snapshots())
def test_with_one_project_the_order_is_the_order_by_deadline(seen: Snapshot) -> None:
    """Fairness among projects is no matter of who has a project of its own."""
    mine = replace(seen, jobs=tuple(replace(one, project_id="proj_a") for one in seen.jobs))
    board = Board.of(mine)
    assert board.placeable() == sorted(board.placeable(), key=edf_key)
    assert board.in_turn(list(board.jobs.values())) == list(board.jobs.values())


def crowd() -> Snapshot:
    """Project A waits with many jobs, all of them earlier and more urgent than the one of project B."""
    jobs = [job(f"job_a{n:03}", project_id="proj_a", deadline_ms=NOW_MS + 900_000 + n) for n in range(MANY)]
    late = job("job_b", project_id="proj_b", submitted_ms=NOW_MS, deadline_ms=NOW_MS + 86_400_000)
    return snapshot(jobs=[*jobs, late], offers=OFFERS)


ONE_BY_ONE = {"hpa", "hpa-conventional"}  # they rent one machine after the other, whoever waits


@pytest.mark.parametrize("name", sorted(set(policy_names()) - ONE_BY_ONE))
def test_a_crowd_of_one_project_does_not_delay_the_first_start_of_another(name: str) -> None:
    """With three places for two hundred jobs, the one job of the other project is served at once by every policy."""
    plan = policy_named(name).decide(Board.of(crowd()), PolicyState(), CONFIG)[0]
    served = {one.job_id for one in plan.actions if isinstance(one, Start | Assign)}
    served |= {one.for_job_id for one in plan.actions if isinstance(one, Provision)}
    assert "job_b" in served
    assert len(served) > 1


@pytest.mark.parametrize("name", sorted(ONE_BY_ONE))
def test_of_machines_that_come_one_by_one_the_second_is_for_the_other_project(name: str) -> None:
    """The first goes by arrival, and counts from then on."""
    busy = node("node_a", Tier.CONVENTIONAL, project_id="proj_a", free_gpus=())
    held = run("run_a", "job_x", "node_a", tier=Tier.CONVENTIONAL)
    seen = replace(crowd(), nodes=(busy,), runs=(held,))
    plan = policy_named(name).decide(Board.of(seen), PolicyState(), CONFIG)[0]
    assert [one.for_job_id for one in plan.actions if isinstance(one, Provision)] == ["job_b"]


@pytest.mark.parametrize("name", ["allpass", "fixed-threshold", "modal-only"])
def test_the_next_free_place_goes_to_who_has_none(name: str) -> None:
    """Where one project holds all places but one, that one is for the other project, whatever the deadlines say."""
    held = [on_serverless(job(f"job_h{n}", project_id="proj_a"), 1_000) for n in range(2)]
    seen = replace(crowd(), nodes=tuple(view for _, view in held))
    plan = policy_named(name).decide(Board.of(seen), PolicyState(), replace(CONFIG, serverful_limit=0))[0]
    assert [one.job_id for one in plan.actions if isinstance(one, Start)] == ["job_b"]


def test_machines_of_all_tiers_count() -> None:
    """What a project has is what it has rented: a node counts as a serverless place does, until it is gone."""
    board = Board.of(crowd())
    board.put_node(node("node_b1", Tier.MARKETPLACE, project_id="proj_b"))
    board.put_node(node("node_b2", Tier.SERVERLESS, project_id="proj_b"))
    assert [one.job_id for one in board.placeable()[:4]] == ["job_a000", "job_a001", "job_a002", "job_b"]
    board.drop_node("node_b1")
    board.drop_node("node_b2")
    assert [one.job_id for one in board.placeable()[:3]] == ["job_a000", "job_b", "job_a001"]
