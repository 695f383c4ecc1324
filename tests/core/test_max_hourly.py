"""A limit on what a job's GPUs may cost per hour: no place beyond it, whatever the policy, and words for who waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.market import Market, TooDear
from app.core.model.job import Caps, JobState, StartRule
from app.core.model.money import Money
from app.core.model.node import SERVERFUL_TIERS
from app.core.model.plan import Assign, Migrate, MoveOut, Plan, Provision, Start
from app.core.model.snapshot import JobView, Snapshot
from app.core.policies import policy_names
from tests.core.plans import ask, brief, why
from tests.core.samples import ALL_ACTIONS, CONFIG, NOW_MS, OFFERS, job, node, on_serverless, snapshot, snapshots

ALL = replace(CONFIG, capabilities=ALL_ACTIONS, serverless_limit=100, serverful_limit=100)


def limited(usd: str, name: str = "job_a", **changes: Any) -> JobView:
    caps = Caps(max_hourly=Money.usd(usd))
    return job(name, caps=caps, submitted_ms=NOW_MS, deadline_ms=NOW_MS + 36_000_000, **changes)


def decided(seen: Snapshot, name: str = "allpass") -> Plan:
    return ask(name, seen, ALL)[0]


def hourly(plan: Plan, seen: Snapshot) -> list[tuple[str, int]]:
    """What each place that is given costs per hour, by job."""
    found, nodes = [], {one.node_id: one for one in seen.nodes}
    for action in plan.actions:
        if isinstance(action, Start | MoveOut):
            found.append((action.job_id, action.offer.price_per_hour.micros))
        elif isinstance(action, Provision):
            found.append((action.for_job_id, action.offer.price_per_hour.micros))
        elif isinstance(action, Assign | Migrate):
            on = nodes[action.node_id]
            found.append((action.job_id, on.price_per_hour.micros * len(action.gpu_indices) // on.gpu_count))
    return found


@pytest.mark.parametrize("policy", policy_names())
@given(
    seen=snapshots(), limits=st.lists(st.sampled_from([None, 500_000, 1_000_000, 2_000_000]), min_size=13, max_size=13)
)
def test_no_place_costs_more_than_the_job_allows(policy: str, seen: Snapshot, limits: list[int | None]) -> None:
    """Whatever runs and whatever is on offer: a start, a node, room on one, and the target of a move."""
    jobs = tuple(
        replace(one, caps=replace(one.caps, max_hourly=None if limit is None else Money(limit)))
        for one, limit in zip(seen.jobs, limits, strict=False)
    )
    seen = replace(seen, jobs=jobs)
    allowed = {one.job_id: one.caps for one in jobs}
    for job_id, micros in hourly(decided(seen, policy), seen):
        assert allowed[job_id].allows_hourly(micros)


def test_it_takes_what_it_may_and_is_told_what_stands_in_the_way() -> None:
    """$0.74 is the cheapest of these that fit: at $0.74 it is taken, at less the job waits and says so."""
    cheapest = min(one.price_per_hour for one in OFFERS)
    exactly = limited(str(cheapest).removeprefix("$"), start=StartRule.NOW)
    assert [micros for _, micros in hourly(decided(snapshot(jobs=[exactly], offers=OFFERS)), snapshot())] == [
        cheapest.micros
    ]
    seen = snapshot(jobs=[limited("0.10", start=StartRule.NOW)], offers=OFFERS)
    assert brief(decided(seen)) == []
    told = why(decided(seen))
    assert "at most $0.10/h (max_hourly)" in told
    assert f"{cheapest}/h: goes on when max_hourly is raised or an offer is cheaper" in told


def test_a_dear_node_of_its_project_is_neither_taken_nor_held_open() -> None:
    """Its share of a shared node counts; a node that is too dear is left to others."""
    dear = node("node_x", gpu_count=2, price_per_hour=Money.usd("3.00"), idle_since_ms=NOW_MS)
    behind = job("job_b", submitted_ms=NOW_MS, deadline_ms=NOW_MS + 72_000_000)
    seen = snapshot(jobs=[limited("1.00"), behind], nodes=[dear])
    assert [action for action in brief(decided(seen)) if action[0] == "assign"] == [("assign", "job_b", "node_x", "0")]
    shared = snapshot(jobs=[limited("1.50")], nodes=[dear])
    assert brief(decided(shared)) == [("assign", "job_a", "node_x", "0")]


def test_where_it_runs_it_stays() -> None:
    """A limit that is set below what its machine costs is of its next places: nothing is asked of its run."""
    held = limited("0.10", state=JobState.RUNNING, total_run_ms=3_600_000)
    live, place = on_serverless(held, 0, running_since_ms=NOW_MS - 600_000)
    seen = snapshot(jobs=[held], runs=[live], nodes=[place], offers=OFFERS)
    assert brief(decided(seen)) == []
    free = replace(held, caps=Caps())
    assert brief(decided(replace(seen, jobs=(free,)))) != []


def test_what_is_nearest_to_the_limits_is_named() -> None:
    """Of offers that are all beyond the limit the cheapest by the hour; none where one may be taken."""
    market = Market(OFFERS, SERVERFUL_TIERS)
    found = market.too_dear(limited("0.10"))
    assert isinstance(found, TooDear)
    assert found.offer.price_per_hour == min(one.price_per_hour for one in market.offers)
    assert market.too_dear(limited("9.00")) is None
    assert market.choose(limited("0.10")) is None
