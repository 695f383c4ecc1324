"""Cost limits in decisions: nothing is rented whose first billing unit the job may not spend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.billing import first_unit
from app.core.invariants import plan_breaches
from app.core.model.job import Caps
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.plan import Provision, Start
from app.core.model.snapshot import Snapshot
from tests.core.plans import F_MS, brief, decide, running, saving, spent_job, why
from tests.core.samples import CLOUD, CONFIG, MARKET, OFFERS, configs, job, snapshot, snapshots

HOUR_MS = 3_600_000


def traits(unit_ms: int, minimum_ms: int = 0, provider: str = "local") -> tuple[ProviderTraits, ...]:
    rule = BillingRule(unit_ms, BillingStart.REQUEST, minimum_ms)
    return tuple(
        ProviderTraits(
            provider=provider, tier=tier, billing=rule, startup_mean_ms=1, startup_deadline_ms=2, create_grace_ms=1,
            dies_with_run=tier is Tier.SERVERLESS, preemptible=False,
        )
        for tier in Tier
    )  # fmt: skip


def billed(seen: Snapshot, unit_ms: int = HOUR_MS) -> Snapshot:
    return replace(seen, traits=traits(unit_ms))


def capped(limit: str, spent: str = "0", **more: Any) -> dict[str, Any]:
    return {"caps": Caps(max_cost=Money.usd(limit)), "spent": Money.usd(spent), **more}


def test_the_first_billing_unit_is_the_least_a_machine_costs() -> None:
    """A started unit, or the minimum."""
    price = Money.usd("3.60")
    assert first_unit(BillingRule(1_000, BillingStart.READY), price) == Money.usd("0.001")
    assert first_unit(BillingRule(1_000, BillingStart.READY, minimum_ms=60_000), price) == Money.usd("0.06")


def test_a_start_whose_first_unit_is_more_than_what_is_left_is_not_made() -> None:
    """The reason names what is left, the offer and its first unit."""
    seen = billed(snapshot(jobs=[job(**capped("1.00", "0.80"))], offers=OFFERS))
    plan = decide(seen)
    assert brief(plan) == []
    assert why(plan) == (
        "has $0.20 left of its max_cost of $1.00, and the first billing unit of the cheapest offer that fits, "
        "local A100 at $0.74/h, is $0.74: goes on when max_cost is raised or an offer is cheaper"
    )


def test_a_cheaper_offer_that_fits_the_limit_is_taken_instead() -> None:
    """What is too dear is passed over, also when it would start sooner."""
    seen = billed(snapshot(jobs=[job(**capped("1.00"))], offers=OFFERS))
    assert brief(decide(seen)) == [("provision", "job_a", "ask")]
    first = billed(snapshot(jobs=[spent_job(**capped("1.00"))], offers=(CLOUD, replace(CLOUD, offer_id="vm2"))))
    assert brief(decide(first)) == []


def test_a_limit_that_pays_the_unit_exactly_is_enough() -> None:
    """The limit may be reached, not passed."""
    seen = billed(snapshot(jobs=[spent_job(**capped("0.74"))], offers=OFFERS))
    assert brief(decide(seen)) == [("provision", "job_a", MARKET.offer_id)]


def test_small_units_leave_the_last_cents_usable() -> None:
    """Billed by the second, a job starts as long as a second is left."""
    seen = billed(snapshot(jobs=[job(**capped("1.00", "0.99"))], offers=OFFERS), unit_ms=1_000)
    assert brief(decide(seen)) == [("start", "job_a", "fn")]


def test_a_run_is_not_demoted_to_a_machine_it_may_not_rent() -> None:
    """It stays where it is and says why."""
    plan = decide(billed(running(F_MS, **capped("1.00", "0.50"))))
    assert brief(plan) == []
    assert "is $0.74: goes on" in why(plan)


def test_no_place_is_prepared_for_a_job_that_leaves_for_good() -> None:
    """A job that saves to be paused or ended wants no other machine, however long it was on serverless."""
    assert brief(decide(saving(F_MS))) == [("provision", "job_a", "ask")]
    assert brief(decide(saving(F_MS, leaving=True))) == []


@settings(max_examples=150)
@given(snapshots(), configs, st.sampled_from([1, 1_000, 60_000, HOUR_MS]))
def test_no_plan_ever_breaks_a_limit(seen: Snapshot, config: Any, unit_ms: int) -> None:
    """In any world, billed by any unit: the first unit of what is rented fits what is left."""
    seen = replace(seen, traits=(*traits(unit_ms, provider="x"), *traits(unit_ms, provider="y")))
    plan = decide(seen, config)
    assert plan_breaches(seen, plan, config) == []
    jobs = {one.job_id: one for one in seen.jobs}
    rule = BillingRule(unit_ms, BillingStart.REQUEST)
    for action in plan.actions:
        if isinstance(action, Start | Provision):
            owner = jobs[action.job_id if isinstance(action, Start) else action.for_job_id]
            least = first_unit(rule, action.offer.price_per_hour)
            assert owner.caps.max_cost is None or owner.spent + least <= owner.caps.max_cost


def test_the_invariant_sees_a_plan_that_breaks_a_limit() -> None:
    """A plan made without knowing how offers are billed is a breach where they are."""
    seen = snapshot(jobs=[job(**capped("1.00"))], offers=OFFERS)
    plan = decide(seen)
    assert brief(plan) == [("start", "job_a", "fn")]
    assert plan_breaches(billed(seen), plan, CONFIG) == [
        "job_a is given start of local/fn, whose first billing unit breaks its cap"
    ]
