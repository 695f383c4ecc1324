"""What an installation may rent: decided by the same function for what is seen and for what is written."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.core.limits import FIRST_TIME, Limits, OpenMachine, Rented, day_begins_ms, rented_at, within_limits
from app.core.model.money import ZERO, Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import ClosedProvider, Snapshot
from tests.control.fake_provider import make_offer

SECOND = BillingRule(unit_ms=1000, starts=BillingStart.REQUEST)
HOUR = replace(SECOND, unit_ms=3_600_000)
amounts = st.integers(0, 10**8).map(Money)


@given(
    limits=st.builds(Limits, st.none() | st.integers(0, 5), st.none() | amounts),
    rented=st.builds(Rented, st.integers(0, 5), amounts),
    least=amounts,
)
def test_what_is_not_refused_keeps_within_both_limits(limits: Limits, rented: Rented, least: Money) -> None:
    """One machine more, with its first billing unit; and what is refused is told with the command that helps."""
    why = rented.refuses(limits, least)
    if why is None:
        assert limits.machines is None or rented.machines + 1 <= limits.machines
        assert limits.per_day is None or rented.spent + least <= limits.per_day
    else:
        assert "allpass limits set --" in why
        assert Rented(0, ZERO).refuses(Limits(None, None), least) is None


@given(
    price=st.integers(1, 10**8),
    metered_ms=st.integers(0, 10**8),
    waited_ms=st.integers(0, 10**8),
    rule=st.sampled_from((SECOND, HOUR)),
)
def test_what_is_not_booked_is_rather_too_much(price: int, metered_ms: int, waited_ms: int, rule: BillingRule) -> None:
    """Never less than the time since the last booking at the machine's price, nor than its first billing unit."""
    booked = Money(price * metered_ms // 3_600_000)
    machine = OpenMachine(rule, Money(price), 0, metered_ms, booked)
    unbooked = machine.unbooked(metered_ms + waited_ms)
    assert unbooked.micros * 3_600_000 >= price * waited_ms
    fresh = OpenMachine(rule, Money(price), 0, None, ZERO)
    assert fresh.unbooked(0).micros * 3_600_000 >= price * rule.unit_ms - 3_600_000


@given(rented=st.builds(Rented, st.integers(0, 5), amounts), rule=st.sampled_from((SECOND, HOUR)))
def test_a_machine_that_is_rented_counts_with_its_first_billing_unit(rented: Rented, rule: BillingRule) -> None:
    """At once, and for whatever is rented after it."""
    machine = rented_at(rule, make_offer("vast", "one", Tier.MARKETPLACE, "3.60", startup_ms=0), now_ms=5)
    more = rented.with_one_more(machine, 5)
    assert more == Rented(rented.machines + 1, rented.spent + Money(rule.unit_ms))
    assert more.refuses(Limits(rented.machines + 1, None), ZERO) is not None


def test_a_first_time_is_two_machines_and_ten_dollars() -> None:
    assert Limits(2, Money.usd(10)) == FIRST_TIME


def test_days_are_those_of_utc() -> None:
    assert day_begins_ms(1_800_000_000_000) == 1_799_971_200_000
    assert day_begins_ms(1_799_971_200_000 - 1) == 1_799_884_800_000


def test_only_real_offers_that_are_too_much_are_left_out() -> None:
    """A provider that has others left is not closed; nor is one that does not ask for real money."""
    traits = tuple(traits_of(name, rule) for name, rule in (("vast", SECOND), ("lambda", HOUR), ("local", HOUR)))
    offers = tuple(offer_of(name) for name in ("lambda", "local", "vast"))
    seen = Snapshot(now_ms=0, jobs=(), runs=(), nodes=(), offers=offers, traits=traits)
    left = within_limits(seen, ["lambda", "vast"], Limits(2, Money.usd(1)), Rented(1, Money.usd("0.5")))
    assert [one.provider for one in left.offers] == ["local", "vast"]
    ((provider, why),) = [(one.provider, one.why) for one in left.closed]
    assert provider == "lambda"
    assert "$0.50 of at most $1.00 a day" in why
    full = within_limits(seen, ["lambda", "vast"], Limits(1, None), Rented(1, ZERO))
    assert [one.provider for one in full.offers] == ["local"]
    assert within_limits(seen, [], FIRST_TIME, Rented(9, Money.usd(99))) is seen
    refused = replace(seen, closed=(ClosedProvider("vast", "credentials"),))
    told = within_limits(refused, ["vast"], Limits(0, None), Rented(0, ZERO)).closed
    assert [one.why for one in told] == ["credentials"]


def traits_of(provider: str, rule: BillingRule) -> ProviderTraits:
    return ProviderTraits(
        provider=provider,
        tier=Tier.MARKETPLACE,
        billing=rule,
        startup_mean_ms=1,
        startup_deadline_ms=1,
        create_grace_ms=1,
        dies_with_run=False,
        preemptible=False,
        max_lifetime_ms=None,
    )


def offer_of(provider: str) -> Offer:
    return make_offer(provider, "a100", Tier.MARKETPLACE, "0.72", startup_ms=1)
