"""How long a job may be kept waiting for its first place: then it starts on what there is, or says why it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import queue
from app.core.board import Board
from app.core.merging.joined import joined
from app.core.model.job import Affinity, Caps, JobState, StartRule
from app.core.model.merge import MergeMode, MergeView
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.plan import ActionKind, Assign, Plan, Start
from app.core.model.snapshot import JobView, Snapshot
from app.core.policies import policy_named, policy_names
from app.core.policies.weighing import most_wait_ms
from tests.core.plans import ask, brief, why
from tests.core.samples import ALL_ACTIONS, CONFIG, NOW_MS, OFFERS, job, node, offer, run, snapshot, snapshots

ALL = replace(CONFIG, capabilities=ALL_ACTIONS, serverless_limit=100, serverful_limit=100)
NO_NODES = replace(ALL, serverful_limit=1)
ON_SERVERLESS = [name for name in policy_names() if ActionKind.START in policy_named(name).uses]
LONG_MS = 3_600_000


def waiting(max_wait_ms: int | None, waited_ms: int, **changes: Any) -> JobView:
    """A job that is to start when it is cheap, and has waited for so long."""
    given = {"start": StartRule.WHEN_CHEAP, "caps": Caps(max_wait_ms=max_wait_ms)}
    return job(submitted_ms=NOW_MS - waited_ms, deadline_ms=NOW_MS + 36_000_000, **(given | changes))


def full_fleet(view: JobView) -> Snapshot:
    """The one node that may be rented is another's."""
    other = node("node_x", free_gpus=(), project_id="proj_b")
    return snapshot(jobs=[view], nodes=[other], offers=OFFERS)


def decided(seen: Snapshot, name: str = "allpass") -> Plan:
    return ask(name, seen, NO_NODES)[0]


@pytest.mark.parametrize("policy", ON_SERVERLESS)
@given(seen=snapshots(), waits_ms=st.lists(st.sampled_from([None, 0, 1, 60_000, LONG_MS]), min_size=13, max_size=13))
def test_who_has_waited_enough_starts_wherever_an_offer_fits(
    policy: str, seen: Snapshot, waits_ms: list[int | None]
) -> None:
    """Whatever the world: while a serverless place is left that the job fits and may pay for, it is placed."""
    jobs = tuple(
        replace(one, caps=replace(one.caps, max_wait_ms=wait_ms))
        for one, wait_ms in zip(seen.jobs, waits_ms, strict=False)
    )
    seen = replace(seen, jobs=jobs)
    config = replace(CONFIG, capabilities=ALL_ACTIONS)
    plan, board = ask(policy, seen, config)[0], Board.of(seen)
    placed = {action.job_id for action in plan.actions if isinstance(action, Start | Assign)}
    started = sum(isinstance(action, Start) for action in plan.actions)
    for one in jobs:
        choice = board.serverless.choose(one)
        held = one.not_before_ms > NOW_MS or queue.cost_cap_reached(one) or one.affinity.beside
        if not queue.has_waited_enough(one, NOW_MS) or held or choice is None or choice.again:
            continue
        assert one.job_id in placed or board.serverless_nodes + started >= config.serverless_limit


@pytest.mark.parametrize("policy", policy_names())
@given(seen=snapshots())
def test_nothing_changes_before_it_is_over_or_once_the_job_has_begun(policy: str, seen: Snapshot) -> None:
    """A limit that is far away, and one on a job that has been placed before, decide nothing."""
    far = [replace(one, caps=replace(one.caps, max_wait_ms=10 * 365 * 86_400_000)) for one in seen.jobs]
    begun = [
        one if one.state == JobState.QUEUED else replace(one, caps=replace(one.caps, max_wait_ms=0))
        for one in seen.jobs
    ]
    without = ask(policy, seen, ALL)[0].actions
    assert ask(policy, replace(seen, jobs=tuple(far)), ALL)[0].actions == without
    assert ask(policy, replace(seen, jobs=tuple(begun)), ALL)[0].actions == without


def test_a_job_that_waits_for_a_cheap_place_takes_any_when_its_time_is_over() -> None:
    """Before, it waits, says for how long, and is decided on again at that moment; then it starts, and says why."""
    early = decided(full_fleet(waiting(LONG_MS, LONG_MS - 1_000)))
    assert brief(early) == []
    assert why(early).endswith("; starts at any price that its limits allow when its max_wait of 60 min is over")
    assert early.wake_at_ms == NOW_MS + 1_000
    late = decided(full_fleet(waiting(LONG_MS, LONG_MS)))
    assert brief(late) == [("start", "job_a", "fn")]
    assert late.actions[0].reason.endswith(": it has waited for its max_wait of 60 min")
    assert brief(decided(full_fleet(waiting(None, 10 * LONG_MS)))) == []


def test_its_other_limits_hold_and_it_is_told_where_nothing_may_be_had() -> None:
    """It is neither ended nor given what it may not pay for: it goes on waiting, and says so."""
    poor = waiting(LONG_MS, LONG_MS, caps=Caps(max_hourly=Money.usd("0.10"), max_wait_ms=LONG_MS))
    told = decided(full_fleet(poor))
    assert brief(told) == []
    assert "at most $0.10/h (max_hourly)" in why(told)
    assert why(told).endswith(
        "; has waited longer than its max_wait of 60 min: starts on the first place that is to be had and that its "
        "limits allow"
    )


def test_where_all_serverless_places_are_taken_a_node_is_rented() -> None:
    """Whatever comes first: the limit of serverless places is no reason to wait where a node may be rented."""
    seen = snapshot(jobs=[waiting(LONG_MS, LONG_MS, start=StartRule.NOW)], offers=OFFERS)
    full = replace(ALL, serverless_limit=0)
    assert [action[0] for action in brief(ask("allpass", seen, full)[0])] == ["provision"]
    some = snapshot(
        jobs=seen.jobs, nodes=[node("node_s", Tier.SERVERLESS, free_gpus=(), project_id="proj_b")], offers=OFFERS
    )
    assert [action[0] for action in brief(ask("allpass", some, replace(ALL, serverless_limit=1))[0])] == ["provision"]


def test_patience_ends_with_it() -> None:
    """No job waits a minute for a cheaper node if it may wait for ten seconds only."""
    patient = waiting(None, 0, start=StartRule.AUTO)
    assert most_wait_ms(ALL, patient, NOW_MS) > 10_000
    assert most_wait_ms(ALL, replace(patient, caps=Caps(max_wait_ms=10_000)), NOW_MS) == 10_000


def test_a_scaler_that_rents_by_load_rents_for_who_has_waited_enough() -> None:
    """`hpa` sizes its fleet four times a minute; a job whose time is over does not wait for that."""
    state = ask("hpa", snapshot(offers=OFFERS), ALL)[1]
    busy = node("node_x", free_gpus=())
    for view, rented in ((waiting(LONG_MS, LONG_MS), 1), (waiting(None, LONG_MS), 0)):
        plan = ask("hpa", snapshot(jobs=[view], nodes=[busy], offers=OFFERS), ALL, state)[0]
        assert len(plan.actions) == rented


def test_of_two_jobs_in_one_training_the_first_to_have_waited_enough_counts() -> None:
    """Each counts from its own submission."""
    lead = waiting(LONG_MS, 10_000)
    companion = replace(waiting(60_000, 50_000), job_id="job_b")
    merge = MergeView("merge_a", "job_a", "job_b", MergeMode.TOGETHER, 1, 1, 0.5, 0.5)
    assert queue.waits_until_ms(joined(lead, companion, merge)) == NOW_MS + 10_000
    free = replace(companion, caps=Caps())
    assert queue.waits_until_ms(joined(lead, free, merge)) == queue.waits_until_ms(lead)


def test_a_job_that_is_to_run_beside_another_does_so() -> None:
    """Beside whom it runs is no matter of money: it waits for that, however long."""
    host = job("job_h", JobState.RUNNING, affinity=Affinity(own=frozenset({"app=x"})))
    view = waiting(LONG_MS, LONG_MS, affinity=Affinity(beside=frozenset({"app=x"})))
    there = node("node_h", free_gpus=())
    seen = snapshot(
        jobs=[view, host], nodes=[there], runs=[run("run_h", "job_h", "node_h", tier=Tier.MARKETPLACE)], offers=OFFERS
    )
    assert [action for action in brief(decided(seen)) if action[1] == "job_a"] == []


def test_an_offer_that_failed_it_is_tried_again_rather_than_waited_on() -> None:
    """Each serverless offer has failed it, and no node may be rented: it takes what there is."""
    only = offer("only")
    view = waiting(LONG_MS, LONG_MS, avoided_offers=frozenset({only.key}))
    held = node("node_x", free_gpus=())
    seen = snapshot(jobs=[view], nodes=[held], offers=[only])
    assert brief(decided(seen)) == [("start", "job_a", "only")]
