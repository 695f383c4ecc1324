"""Budgets: what counts against them, when they turn, whom they hold, and that no policy goes beyond them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import queue
from app.core.billing import first_unit
from app.core.budgets import (
    BudgetStanding,
    PaidMachine,
    begins_ms,
    ends_ms,
    refused_by,
    standing,
    that_holds,
    within_budgets,
)
from app.core.calendar import DAY_MS, HOUR_MS, LAST_MS
from app.core.codec import dumps, loads
from app.core.invariants import plan_breaches
from app.core.limits import OpenMachine
from app.core.market import Market
from app.core.merging.joined import joined
from app.core.model.budget import Allowance, Budget, Period
from app.core.model.job import Caps
from app.core.model.merge import MergeMode, MergeView
from app.core.model.money import ZERO, Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.plan import Assign, Migrate, MoveOut, Provision, Start
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_names
from tests.core.plans import ask
from tests.core.samples import ALL_ACTIONS, CONFIG, NOW_MS, OFFERS, job, node, snapshot, snapshots

ALL = replace(CONFIG, capabilities=ALL_ACTIONS, serverless_limit=100, serverful_limit=100)
SECOND = BillingRule(1000, BillingStart.REQUEST)
PROJECT = job().project_id
amounts = st.integers(0, 10**9).map(Money)
moments = st.integers(0, LAST_MS - 40 * DAY_MS)  # within the last period, time is read as standing still
DOLLAR = Money(1_000_000)
periods = st.sampled_from(Period)


def budget(amount: Money = DOLLAR, **changes: object) -> Budget:
    plain = Budget("bud_1", PROJECT, None, None, Period.DAY, amount)
    return replace(plain, **changes)  # type: ignore[arg-type]  # fields of a budget


def used_up(now_ms: int = NOW_MS, **changes: object) -> BudgetStanding:
    return BudgetStanding(budget(**changes), Money(1_000_000), ZERO, now_ms)  # type: ignore[arg-type]  # as above


def at(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]  # year, month and so on


# Periods


@given(now_ms=moments, period=periods)
def test_every_moment_is_in_one_period(now_ms: int, period: Period) -> None:
    """It begins at or before the moment and ends after it, and the next one begins where it ends."""
    begun, ended = begins_ms(period, now_ms), ends_ms(period, now_ms)
    assert begun <= now_ms < ended
    assert begins_ms(period, begun) == begins_ms(period, ended - 1) == begun
    assert begins_ms(period, ended) == ended


def test_months_end_when_the_calendar_says() -> None:
    """In February of a leap year too; days and hours are whole ones of UTC."""
    moment = at(2028, 2, 29, 23, 59, 59)
    assert begins_ms(Period.MONTH, moment) == at(2028, 2, 1)
    assert {ends_ms(period, moment) for period in Period} == {at(2028, 3, 1)}
    assert ends_ms(Period.MONTH, at(2026, 12, 5)) == at(2027, 1, 1)
    assert begins_ms(Period.HOUR, moment) == at(2028, 2, 29, 23)


@given(now_ms=st.integers(-(2**62), 2**62), period=periods)
def test_a_clock_that_jumps_stops_nothing(now_ms: int, period: Period) -> None:
    """Wherever it jumps to there is a period, and what is held has a moment at which it goes on, in words."""
    assert begins_ms(period, now_ms) < ends_ms(period, now_ms)
    assert "goes on by itself at " in used_up(now_ms, period=period).why_held


# What counts


@given(
    amount=amounts,
    booked=amounts,
    price=st.integers(0, 10**8),
    since_ms=st.integers(0, 10**8),
    project=st.sampled_from([None, PROJECT, "proj_other"]),
    key=st.sampled_from([None, "key_1", "key_2"]),
    provider=st.sampled_from([None, "vast", "modal"]),
)
def test_what_is_booked_and_what_open_machines_cost_counts(
    amount: Money, booked: Money, price: int, since_ms: int, project: str | None, key: str | None, provider: str | None
) -> None:
    """Only that of the budget's project, key and provider; a state is one of three, and what is left is never less than
    nothing."""
    open_machine = OpenMachine(SECOND, Money(price), NOW_MS - since_ms, None, ZERO)
    machine = PaidMachine(PROJECT, "key_1", "vast", open_machine)
    one = budget(amount, project_id=project, key_id=key, provider=provider)
    ours = project in (None, PROJECT) and key in (None, "key_1") and provider in (None, "vast")
    now = standing(one, booked, [machine], NOW_MS)
    assert standing(one, booked, [], NOW_MS).with_one_more(machine) == now
    assert now.spent == (booked + open_machine.unbooked(NOW_MS) if ours else booked)
    assert now.per_hour.micros == (price if ours else 0)
    assert now.left == Money(max(0, amount.micros - now.spent.micros))
    assert now.used_up is (now.spent >= amount)
    assert now.near is (not now.used_up and now.spent.micros * 10 >= amount.micros * 8)
    assert now.foreseen >= now.spent


def test_a_budget_of_nothing_is_used_up_before_anything_is_spent() -> None:
    """And never nearly so: there is nothing to warn of."""
    none = BudgetStanding(budget(ZERO), ZERO, ZERO, NOW_MS)
    assert (none.used_up, none.near, none.left) == (True, False, ZERO)


def test_a_correction_gives_back_what_it_took_off() -> None:
    """A sum may be less than nothing: more is then left, and nothing is nearly used up."""
    now = BudgetStanding(budget(), Money(-500_000), ZERO, NOW_MS)
    assert (now.used_up, now.near, now.left) == (False, False, Money(1_500_000))


def test_what_is_foreseen_is_what_is_rented_until_the_period_ends() -> None:
    now = BudgetStanding(
        budget(period=Period.HOUR), Money(10), Money(3_600_000), begins_ms(Period.HOUR, NOW_MS) + HOUR_MS // 4
    )
    assert now.foreseen == Money(10 + 2_700_000)


# Who is held


def test_of_several_budgets_the_one_that_lasts_longest_is_told() -> None:
    """Until then the others help nothing. One of another provider, key or project holds nobody here."""
    hour, month = used_up(period=Period.HOUR), used_up(budget_id="bud_2", period=Period.MONTH)
    other = [used_up(provider="modal"), used_up(key_id="key_2"), used_up(project_id="proj_other")]
    assert that_holds([month, hour, *other], PROJECT, "key_1", ["vast"]) is month
    assert that_holds([hour, *other], PROJECT, "key_1", ["vast"]) is hour
    assert that_holds(other, PROJECT, "key_1", ["vast"]) is None
    assert that_holds(other, PROJECT, "key_1", ["vast", "modal"]) is other[0]
    assert that_holds(other, PROJECT, "key_2", []) is other[1]
    assert that_holds(other, PROJECT, None, []) is None


@given(left=amounts, least=amounts, provider=st.sampled_from([None, "vast"]))
def test_what_is_not_refused_stays_within_the_budget(left: Money, least: Money, provider: str | None) -> None:
    """By one machine; and what is refused is told with the moment and the command that help."""
    now = BudgetStanding(budget(left, provider=provider), ZERO, ZERO, NOW_MS)
    offer = replace(OFFERS[0], provider="vast")
    why = refused_by([now], PROJECT, None, offer, least)
    if why is None:
        assert least <= left
        assert left > ZERO
    else:
        assert "goes on by itself at " in why
        assert "allpass budget set --period day" in why
    assert refused_by([now], "proj_other", None, offer, least) is None
    elsewhere = refused_by([now], PROJECT, None, replace(offer, provider="modal"), least)
    assert elsewhere == (None if provider == "vast" else why)


def test_names_say_whose_budget_it_is() -> None:
    """And nothing of what others have spent."""
    every = budget(Money.usd(5), project_id=None, key_id=None, provider="vast", period=Period.HOUR)
    assert every.name == "the installation's budget of $5.00 an hour at vast"
    assert budget(Money.usd(5), key_id="key_1").name == "the project's budget for key_1 of $5.00 a day"
    told = BudgetStanding(every, Money.usd(7), ZERO, NOW_MS).why_held
    assert "an owner of the installation" in told
    assert "--installation" in told
    assert "$7" not in told


# What decisions see


def traits(provider: str, tier: Tier, rule: BillingRule) -> ProviderTraits:
    return ProviderTraits(provider, tier, rule, 1, 1, 1, dies_with_run=False, preemptible=False, max_lifetime_ms=None)


def test_nothing_is_shown_of_budgets_that_leave_enough() -> None:
    """Then decisions are as fast as without any, and ticks as small."""
    seen = snapshot(jobs=[job()], offers=OFFERS)
    plenty = BudgetStanding(budget(Money.usd(100)), ZERO, ZERO, NOW_MS)
    assert within_budgets(seen, [plenty], {}) is seen
    assert within_budgets(seen, [], {}) is seen
    assert within_budgets(snapshot(), [used_up()], {}) == snapshot()


def test_each_job_sees_what_it_counts_against() -> None:
    """Its project's, its key's and the installation's; nothing is rented ahead for a project that has nothing left."""
    seen = snapshot(jobs=[job("job_a"), job("job_b"), job("job_c", project_id="proj_other")], offers=OFFERS)
    standings = [used_up(key_id="key_1"), used_up(budget_id="bud_2", project_id="proj_other")]
    shown = within_budgets(seen, standings, {"job_a": "key_1", "job_c": "key_1"})
    left = {one.job_id: one.allowances for one in shown.jobs}
    assert left["job_a"] == (standings[0].allowance(),)
    assert left["job_b"] == ()
    assert left["job_c"] == (standings[1].allowance(),)
    assert shown.no_ahead == ("proj_other",)
    assert within_budgets(seen, [used_up(project_id=None)], {}).no_ahead == tuple(sorted({PROJECT, "proj_other"}))


def test_jobs_that_train_together_are_held_by_the_budgets_of_both() -> None:
    """In turn, each by its own."""
    seen = snapshot(jobs=[job("job_a"), job("job_b")], offers=OFFERS)
    held = [used_up(key_id="key_2")]
    for mode, shown in ((MergeMode.TOGETHER, 1), (MergeMode.IN_TURN, 0)):
        merge = MergeView("merge_1", "job_a", "job_b", mode, 1, 1, 0.0, 0.0)
        both = within_budgets(replace(seen, merges=(merge,)), held, {"job_b": "key_2"})
        assert len(both.jobs[0].allowances) == shown
        assert len(both.jobs[1].allowances) == 1
    one, other = (replace(job(name), allowances=(used_up(budget_id=name).allowance(),)) for name in ("job_a", "job_b"))
    assert joined(one, other, merge).allowances == one.allowances


def test_a_snapshot_with_budgets_can_be_decided_again() -> None:
    """What was seen is written down and read as it was."""
    seen = within_budgets(snapshot(jobs=[job()], offers=OFFERS), [used_up()], {})
    assert loads(Snapshot, dumps(seen)) == seen


allowances = st.lists(
    st.builds(
        Allowance,
        st.sampled_from([None, *sorted({one.provider for one in OFFERS}), "elsewhere"]),
        st.sampled_from([ZERO, Money(1), Money(600), Money(10**7)]),
        st.just("the project's budget of $1.00 a day"),
        st.just("goes on by itself at 2026-11-24 00:00 UTC, or when somebody allows more"),
    ),
    max_size=2,
).map(tuple)


@pytest.mark.parametrize("policy", policy_names())
@given(seen=snapshots(), left=st.lists(allowances, min_size=13, max_size=13))
def test_no_policy_goes_beyond_a_budget(policy: str, seen: Snapshot, left: list[tuple[Allowance, ...]]) -> None:
    """Whatever runs and whatever is on offer: no start, no node, no room on one, and no target of a move. Whoever is
    given nothing is told why."""
    rules = tuple(traits(*where, SECOND) for where in sorted({(one.provider, one.tier) for one in seen.offers}))
    jobs = tuple(replace(one, allowances=some) for one, some in zip(seen.jobs, left, strict=False))
    seen = replace(seen, jobs=jobs, traits=rules)
    plan = ask(policy, seen, ALL)[0]
    assert plan_breaches(seen, plan, ALL) == []
    by_id, nodes = {one.job_id: one for one in jobs}, {one.node_id: one for one in seen.nodes}
    for action in plan.actions:
        if isinstance(action, Start | MoveOut | Provision):
            job_id = action.for_job_id if isinstance(action, Provision) else action.job_id
            least = first_unit(SECOND, action.offer.price_per_hour)
            assert by_id[job_id].refused_by(action.offer.provider, least) is None
        elif isinstance(action, Assign | Migrate):
            assert by_id[action.job_id].may_run_at(nodes[action.node_id].provider)


@pytest.mark.parametrize("policy", policy_names())
def test_a_job_whose_budget_is_used_up_waits_and_is_told(policy: str) -> None:
    """Beside one that has something left, which is placed; and no node is kept or rented for it."""
    held = replace(job("job_a", submitted_ms=0), allowances=(used_up().allowance(),))
    plan = ask(policy, snapshot(jobs=[held, job("job_b")], offers=OFFERS), ALL)[0]
    told = {one.job_id: one.reason for one in plan.waiting}
    assert "budget of $1.00 a day is used up: goes on by itself at" in told["job_a"]
    assert not any("job_a" in (getattr(one, "job_id", ""), getattr(one, "for_job_id", "")) for one in plan.actions)


def test_another_provider_is_taken_where_a_budget_closes_one() -> None:
    """The cheaper one has nothing left; where no other is on offer, the reason names the budget."""
    cheap = replace(OFFERS[0], provider="vast", price_per_hour=Money(1), tier=Tier.SERVERLESS)
    dear = replace(OFFERS[0], provider="modal", tier=Tier.SERVERLESS)
    closed = replace(job(), allowances=(used_up(provider="vast").allowance(),))
    choice = Market((cheap, dear), (Tier.SERVERLESS,)).choose(closed)
    assert choice is not None
    assert choice.offer.provider == "modal"
    only = Market((cheap,), (Tier.SERVERLESS,))
    assert only.choose(closed) is None
    assert only.too_dear(closed) is not None
    (waiting,) = ask("allpass", snapshot(jobs=[closed], offers=[cheap]), ALL)[0].waiting
    assert "at vast is used up" in waiting.reason


def test_a_first_billing_unit_that_is_more_than_is_left_is_told() -> None:
    """With what it costs, and without what is left: that may be of all projects. The job's own limit is told first."""
    hourly = BillingRule(HOUR_MS, BillingStart.REQUEST)
    offer = replace(OFFERS[0], provider="lambda", tier=Tier.SERVERLESS)
    little = BudgetStanding(budget(Money(10), project_id=None), ZERO, ZERO, NOW_MS).allowance()
    poor = replace(job(), allowances=(little,))
    seen = replace(snapshot(jobs=[poor], offers=[offer]), traits=(traits("lambda", Tier.SERVERLESS, hourly),))
    (waiting,) = ask("allpass", seen, ALL)[0].waiting
    assert f"the first billing unit of the machine, {offer.price_per_hour}" in waiting.reason
    assert "the installation's budget" in waiting.reason
    capped = replace(poor, caps=Caps(max_cost=Money(1)))
    (waiting,) = ask("allpass", replace(seen, jobs=(capped,)), ALL)[0].waiting
    assert "max_cost" in waiting.reason


def test_a_node_of_a_closed_provider_is_no_place() -> None:
    """Room there is for others; the job itself is not held, and may run elsewhere."""
    there = node("node_1", provider="vast")
    closed = replace(job(), allowances=(used_up(provider="vast").allowance(),))
    for one, placed in ((closed, []), (job(), ["job_a"])):
        plan = ask("allpass", snapshot(jobs=[one], nodes=[there]), ALL)[0]
        assert [action.job_id for action in plan.actions if isinstance(action, Assign)] == placed
    assert not queue.has_spent_all(closed)
