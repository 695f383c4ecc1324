"""What makes a policy raise is left out of the decision, and nobody else is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import combinations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.codec import dumps
from app.core.deciding import MOST_TRIES, Decided, Noun, decide_apart
from app.core.invariants import plan_breaches
from app.core.leaving_out import leave_out, together_with
from app.core.model.job import Affinity, JobState
from app.core.model.merge import MergeMode, MergeView
from app.core.model.plan import ActionKind, Plan, Waiting
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named
from app.core.policy import Policy, PolicyConfig, PolicyState
from app.core.queue import is_placeable
from tests.core import samples
from tests.core.samples import CONFIG, NOW_MS, configs, job, snapshot, snapshots

POLICIES = ("allpass", "fixed-threshold", "allpass-paper")


@dataclass
class Poisoned:
    """A policy that raises as soon as it sees one of these ids, and counts how often it was asked."""

    inner: Policy
    poison: Collection[str]
    asked: int = 0
    name: str = "poisoned"
    uses: frozenset[ActionKind] = field(default_factory=frozenset)
    moves_by_budget: bool = False

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        self.asked += 1
        seen = {*board.jobs, *board.nodes, *(offer.key for offer in board.offers)}
        for key in sorted(seen & set(self.poison)):
            raise ZeroDivisionError(key)
        return self.inner.decide(board, state, config)


def apart(seen: Snapshot, poison: Collection[str], config: PolicyConfig = CONFIG, name: str = "allpass") -> Decided:
    return decide_apart(Poisoned(policy_named(name), poison), seen, PolicyState(), config)


def blamed(found: Decided) -> list[str]:
    return [member.key for member in found.blamed]


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40)
@given(seen=snapshots(), config=configs, data=st.data())
def test_without_the_one_that_raises_the_plan_is_what_it_would_be_if_that_did_not_exist(
    name: str, seen: Snapshot, config: PolicyConfig, data: st.DataObject
) -> None:
    """Whether it waits or runs; and for one that has no run, as if it had never been submitted, byte for byte."""
    if not seen.jobs:
        return
    poison = data.draw(st.sampled_from(seen.jobs))
    found = apart(seen, {poison.job_id}, config, name)
    assert blamed(found) == [poison.job_id]
    kept, gone = leave_out(seen, job_ids={poison.job_id})
    assert found.left_out == gone
    expected, _ = policy_named(name).decide(Board.of(kept), PolicyState(), config)
    assert dumps(found.plan) == dumps(expected)
    alone = not any(poison.job_id in run.job_ids for run in seen.runs)
    event(f"it {'waits' if is_placeable(poison) else 'has a run'}")
    if alone and gone == {poison.job_id}:
        never = replace(seen, jobs=tuple(each for each in seen.jobs if each is not poison))
        assert dumps(policy_named(name).decide(Board.of(never), PolicyState(), config)[0]) == dumps(found.plan)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40)
@given(seen=snapshots(), config=configs, data=st.data())
def test_what_is_left_out_keeps_what_it_holds(
    name: str, seen: Snapshot, config: PolicyConfig, data: st.DataObject
) -> None:
    """No plan gives away its GPUs, releases its node or passes the limits, as judged on the whole snapshot; any number
    of jobs may raise."""
    ids = [each.job_id for each in seen.jobs] + [node.node_id for node in seen.nodes]
    poison = set(data.draw(st.lists(st.sampled_from(ids), unique=True))) if ids else set()
    found = apart(seen, poison, config, name)
    told = tuple(Waiting(job_id, "left out") for job_id in sorted(found.left_out))
    judged = replace(found.plan, waiting=found.plan.waiting + told)
    assert plan_breaches(seen, judged, config) == []


@settings(max_examples=60)
@given(seen=snapshots(), data=st.data())
def test_of_several_exactly_those_are_blamed_that_raise(seen: Snapshot, data: st.DataObject) -> None:
    """Jobs are not blamed for their node, nor nodes for their jobs."""
    ids = [each.job_id for each in seen.jobs] + [node.node_id for node in seen.nodes]
    if not ids:
        return
    poison = set(data.draw(st.lists(st.sampled_from(ids), unique=True, min_size=1, max_size=4)))
    found = apart(seen, poison)
    on_poisoned = {one for run in seen.runs if run.node_id in poison for one in run.job_ids}
    assert poison - on_poisoned <= set(blamed(found)) <= poison
    assert found.unseen == ()
    assert found.tries <= MOST_TRIES


def crowd(projects: int, jobs: int) -> Snapshot:
    """Queued jobs of several projects."""
    return snapshot(
        jobs=tuple(job(f"job_{p:03}_{n:04}", project_id=f"proj_{p:03}") for p in range(projects) for n in range(jobs)),
        offers=(samples.offer("o"),),
    )


def test_one_among_thousands_is_found_in_few_tries() -> None:
    """The project first, then the job: twice the logarithm of how many there are."""
    seen = crowd(20, 100)
    policy = Poisoned(policy_named("fixed-threshold"), {"job_013_0077"})
    found = decide_apart(policy, seen, PolicyState(), CONFIG)
    assert blamed(found) == ["job_013_0077"]
    assert policy.asked == found.tries <= 30


def test_a_suspect_that_still_raises_costs_four_tries() -> None:
    """All; nothing; all but the suspects; the suspect."""
    seen = crowd(20, 100)
    policy = Poisoned(policy_named("fixed-threshold"), {"job_013_0077"})
    found = decide_apart(policy, seen, PolicyState(), CONFIG, suspects={"job_013_0077"})
    assert (blamed(found), policy.asked) == (["job_013_0077"], 4)


def test_more_than_can_be_tried_at_once_still_makes_progress() -> None:
    """Some are blamed, some not looked at yet; what was admitted is decided on. With the blamed as suspects, the next
    decision comes further, until all of them are known."""
    poison = {f"job_{p:03}_0000" for p in range(7)}
    seen, known = crowd(7, 20), set[str]()
    for _ in range(len(poison)):
        policy = Poisoned(policy_named("fixed-threshold"), poison)
        found = decide_apart(policy, seen, PolicyState(), CONFIG, suspects=known, most_tries=24)
        assert policy.asked <= 2 * 24 + 1
        assert set(blamed(found)) <= poison
        known |= set(blamed(found))
        if known == poison and not found.unseen:
            break
    assert known == poison
    waiting_for = {wait.job_id for wait in found.plan.waiting} | {action.job_id for action in found.plan.actions}  # type: ignore[union-attr]  # starts alone
    assert waiting_for == {each.job_id for each in seen.jobs} - poison


def test_an_offer_that_raises_is_not_blamed_on_every_job() -> None:
    """Of two that may be to blame, what leaves out less is."""
    offers = tuple(samples.offer(f"o{n}") for n in range(30))

    @dataclass
    class Weighs(Poisoned):
        def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
            if board.jobs and any(offer.key in self.poison for offer in board.offers):
                raise ZeroDivisionError
            return self.inner.decide(board, state, config)

    seen = replace(crowd(5, 20), offers=offers)
    found = decide_apart(Weighs(policy_named("allpass"), {offers[17].key}), seen, PolicyState(), CONFIG)
    assert [(member.noun, member.key) for member in found.blamed] == [(Noun.OFFER, offers[17].key)]
    assert found.left_out == frozenset()


def test_what_raises_without_anybody_is_raised() -> None:
    """Nobody is left out for what nobody is to blame for."""

    class Broken(Poisoned):
        def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
            raise KeyError("traits")

    with pytest.raises(KeyError, match="traits"):
        decide_apart(Broken(policy_named("allpass"), ()), crowd(2, 2), PolicyState(), CONFIG)


def test_two_that_raise_only_together_cost_one_of_them_its_place() -> None:
    """Progress, whoever is to blame."""

    class Together(Poisoned):
        def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
            if set(self.poison) <= set(board.jobs):
                raise ValueError
            return self.inner.decide(board, state, config)

    seen = crowd(2, 3)
    for pair in combinations([each.job_id for each in seen.jobs], 2):
        found = decide_apart(Together(policy_named("allpass"), pair), seen, PolicyState(), CONFIG)
        assert len(found.blamed) == 1
        assert found.blamed[0].key in pair


def test_beside_a_job_that_asks_to_be_alone_nobody_comes_while_it_is_left_out() -> None:
    """Nor beside one that is not to be read, which may ask for that. Beside any other, free GPUs are free."""
    shared = samples.node("node_a", gpu_count=2, free_gpus=(1,))
    held = samples.run("run_a", "job_a", "node_a", tier=shared.tier)
    asks = Affinity(own=frozenset({"app=x"}), apart=frozenset({"app=x"}))
    for jobs, free in (
        ((job("job_a", JobState.RUNNING),), (1,)),
        ((job("job_a", JobState.RUNNING, affinity=asks),), ()),
        ((), ()),
    ):
        kept, _ = leave_out(snapshot(jobs=jobs, runs=(held,), nodes=(shared,)), job_ids=["job_a"])
        assert [node.free_gpus for node in kept.nodes] == [free]


def merged(lead_id: str, companion_id: str) -> MergeView:
    return MergeView("merge_a", lead_id, companion_id, MergeMode.TOGETHER, 1, 1, 0.5, 0.5)


def test_jobs_that_are_merged_go_together() -> None:
    """Either of a pair takes the other one along, and their merge: it would else be placed alone."""
    jobs = tuple(job(f"job_{name}") for name in "abc")
    seen = Snapshot(NOW_MS, jobs, merges=(merged("job_a", "job_b"),))
    for one in ("job_a", "job_b"):
        kept, gone = leave_out(seen, job_ids=[one])
        assert gone == {"job_a", "job_b"}
        assert ([each.job_id for each in kept.jobs], kept.merges) == (["job_c"], ())
        assert together_with(seen, [one]) == gone
    assert blamed(apart(seen, {"job_b"})) == ["job_a"], "the lead stands for both"


def test_a_node_goes_with_what_runs_on_it_and_counts_for_the_limits() -> None:
    """Its job does not look like one without a run; and what it takes of the limit is not given out again."""
    node = samples.node("node_a", free_gpus=())
    running = job("job_a", JobState.RUNNING)
    held = samples.run("run_a", "job_a", "node_a", tier=node.tier)
    seen = snapshot(jobs=(running, job("job_b")), runs=(held,), nodes=(node,))
    kept, gone = leave_out(seen, node_ids=["node_a"])
    assert gone == {"job_a"}
    assert (kept.runs, kept.nodes) == ((), ())

    @dataclass
    class Limited(Poisoned):
        limits: list[int] = field(default_factory=list)

        def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
            self.limits.append(config.serverful_limit)
            return Poisoned.decide(self, board, state, config)

    policy = Limited(policy_named("allpass"), {"node_a"})
    decide_apart(policy, seen, PolicyState(), replace(CONFIG, serverful_limit=4))
    assert policy.limits[-1] == 3
