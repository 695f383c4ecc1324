"""What must not be enacted is left out of a plan, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.invariants import judge, plan_breaches
from app.core.judging import sound_part
from app.core.model.job import JobState
from app.core.model.plan import Action, Assign, Demote, Plan, Provision, Release, Start, Waiting
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named, policy_names
from app.core.policy import PolicyConfig, PolicyState
from tests.core.samples import CONFIG, MARKET, OFFERS, SERVERLESS, configs, job, node, offer, snapshot, snapshots

WAITING = job("job_a")
OTHER = job("job_b", deadline_ms=20_000_000)
IDLE = node("node_a", idle_since_ms=0)
SEEN = snapshot(jobs=[WAITING, OTHER], nodes=[IDLE], offers=OFFERS)
START = Start("job_a", SERVERLESS, "now", (("job_a", 1),))
PLACE = Assign("job_b", "node_a", (0,), "free", (("job_b", 1), ("node_a", 1)))


def planned(*actions: Action) -> Plan:
    named = {getattr(action, "job_id", "") for action in actions}
    waiting = tuple(Waiting(one.job_id, "later") for one in SEEN.jobs if one.job_id not in named)
    return Plan("test", actions, waiting)


def test_a_sound_plan_stays_as_it_is() -> None:
    verdict = sound_part(SEEN, planned(START, PLACE), CONFIG)
    assert (verdict.plan, verdict.refusals, verdict.forgotten) == (planned(START, PLACE), (), ())


@pytest.mark.parametrize(
    ("bad", "invariant", "words"),
    [
        (replace(START, versions=(("job_a", 2),)), "version", "which has 1"),
        (replace(START, reason=""), "kind", "gives no reason"),
        (replace(START, offer=offer("fn", price="0.01")), "offer", "not on offer"),
        (replace(START, job_id="job_z"), "version", "job_z"),
        (Demote("job_a", "run_x", "why", (("job_a", 1), ("run_x", 1))), "stopping", "no running run"),
        (Release("node_z", "why", (("node_z", 1),)), "version", "node_z"),
        (Provision("proj_b", "job_a", MARKET, "why", (("job_a", 1),)), "placing", "would belong to proj_b"),
    ],
)
def test_what_is_wrong_is_refused_and_the_rest_enacted(bad: Action, invariant: str, words: str) -> None:
    """An action of another version, price, project or run goes, with the invariant in words; its neighbour stays."""
    verdict = sound_part(SEEN, planned(bad, PLACE), CONFIG)
    assert verdict.plan.actions == (PLACE,)
    (refusal,) = verdict.refusals
    assert refusal.action == bad
    assert invariant in {breach.invariant for breach in refusal.breaches}
    assert words in refusal.why


def test_of_a_limit_the_last_ones_go() -> None:
    """Where all are too many and none is wrong by itself, those that come first in the plan are enacted."""
    other = replace(START, job_id="job_b", versions=(("job_b", 1),))
    verdict = sound_part(SEEN, planned(START, other), replace(CONFIG, serverless_limit=1))
    assert verdict.plan.actions == (START,)
    assert [refusal.action for refusal in verdict.refusals] == [other]


def test_a_job_is_given_one_thing() -> None:
    """Of two actions on one job, the second is refused; so is the release of a node that the first fills."""
    again = Assign("job_a", "node_a", (0,), "free", (("job_a", 1), ("node_a", 1)))
    release = Release("node_a", "idle", (("node_a", 1),))
    verdict = sound_part(SEEN, planned(START, again, release), CONFIG)
    assert verdict.plan.actions[0] == START
    assert again in [refusal.action for refusal in verdict.refusals]


def test_what_one_refusal_makes_wrong_is_refused_too() -> None:
    """After actions have gone, the rest is looked at again: what is left breaks nothing by itself."""
    crowded = snapshot(jobs=[WAITING, OTHER], nodes=[node("node_a", idle_since_ms=0, gpu_count=2)], offers=OFFERS)
    first = Assign("job_a", "node_a", (0,), "free", (("job_a", 1), ("node_a", 1)))
    second = Assign("job_b", "node_a", (0,), "free", (("job_b", 1), ("node_a", 1)))
    verdict = sound_part(crowded, planned(first, second), CONFIG)
    assert plan_breaches(crowded, verdict.plan, CONFIG) == ["job_b is queued and is told nothing"]


def test_a_forgotten_job_is_told_of_and_nothing_is_left_out() -> None:
    verdict = sound_part(SEEN, Plan("test", (START,)), CONFIG)
    assert verdict.plan.actions == (START,)
    assert [breach.sentence for breach in verdict.forgotten] == ["job_b is queued and is told nothing"]


def test_a_broken_world_stops_nobody() -> None:
    """A job that runs without a run, a node that claims GPUs that it has not: the plan for the others is judged."""
    broken = snapshot(
        jobs=[WAITING, job("job_c", JobState.RUNNING)], nodes=[node("node_a", free_gpus=(0, 7))], offers=OFFERS
    )
    assert sound_part(broken, Plan("test", (START,)), CONFIG).plan.actions == (START,)


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=25)
@given(seen=snapshots(), config=configs)
def test_no_policy_is_refused_anything(name: str, seen: Snapshot, config: PolicyConfig) -> None:
    plan, _ = policy_named(name).decide(Board.of(seen), PolicyState(), config)
    assert sound_part(seen, plan, config).refusals == ()


def _mutated(draw: Any, action: Action, actions: tuple[Action, ...]) -> Action:
    """The same with one thing wrong, or nothing."""
    versions = tuple((row_id, version + draw(st.integers(0, 1))) for row_id, version in action.versions)
    changes: dict[str, Any] = {"versions": versions}
    for name in ("job_id", "node_id", "run_id"):
        others = [getattr(other, name) for other in actions if hasattr(other, name)]
        if hasattr(action, name) and draw(st.booleans()):
            changes[name] = draw(st.sampled_from([*others, "none"]))
    if hasattr(action, "gpu_indices"):
        changes["gpu_indices"] = draw(st.sampled_from([action.gpu_indices, (0,), (7,), (0, 0)]))
    return replace(action, **changes)


@settings(max_examples=200)
@given(seen=snapshots(), config=configs, data=st.data())
def test_whatever_is_planned_what_is_left_is_sound(seen: Snapshot, config: PolicyConfig, data: st.DataObject) -> None:
    """Plans with anything wrong in them, twice over: no breach is left that an action could be left out for, what is
    left comes in its order, and what was right by itself is not lost."""
    plan, _ = policy_named("allpass").decide(Board.of(seen), PolicyState(), config)
    wrong = tuple(_mutated(data.draw, action, plan.actions) for action in plan.actions)
    mixed = tuple(data.draw(st.permutations([*plan.actions, *wrong])))
    verdict = sound_part(seen, replace(plan, actions=mixed), config)
    assert [breach for breach in judge(seen, verdict.plan, config) if breach.actions] == []
    assert len(verdict.plan.actions) + len(verdict.refusals) == len(mixed)
    rest = iter(mixed)  # which may hold an action twice
    assert all(action in rest for action in verdict.plan.actions), "out of order"


def test_of_a_crowd_only_those_who_are_told_now_can_be_forgotten() -> None:
    """A plan that tells some of very many why they wait has not forgotten the others."""
    seen = snapshot(jobs=(job("job_a", JobState.QUEUED), job("job_b", JobState.QUEUED), job("job_c", JobState.QUEUED)))
    nothing = Plan("allpass")
    assert [breach.sentence[:5] for breach in judge(seen, nothing, CONFIG)] == ["job_a", "job_b", "job_c"]
    some = replace(CONFIG, told=(("job_b", "job_b"), ("job_d", "job_e")))
    assert [breach.sentence[:5] for breach in judge(seen, nothing, some)] == ["job_b"]
