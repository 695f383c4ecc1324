"""Jobs that have never saved: no plan takes them off their machine; those that have, but do not when asked, weigh the
steps that they would lose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.invariants import plan_breaches
from app.core.market import Market
from app.core.model.job import JobState, StartRule
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named, policy_names
from app.core.policies.weighing import break_even_ms
from app.core.policy import PolicyState
from app.core.remaining import ran_ms, unkept_ms
from tests.core.plans import F_MS, running
from tests.core.samples import ALL_ACTIONS, CONFIG, MARKET, NOW_MS, OFFERS, SERVERLESS, job, node, snapshot

EVERYTHING = replace(CONFIG, capabilities=ALL_ACTIONS, rules=replace(CONFIG.rules, move_pause_share=0.1))


def there(ran_for_ms: int = 2 * F_MS, **changes: object) -> Snapshot:
    """A job on serverless, and a cheaper node that stands ready."""
    cheap = node("node_c", price_per_hour=Money(5))
    seen = running(ran_for_ms, **{"total_run_ms": 72_000_000, "deadline_ms": NOW_MS + 360_000_000, **changes})
    return replace(seen, nodes=tuple(sorted((cheap, *seen.nodes), key=lambda one: one.node_id)))


def leaves(name: str, **changes: object) -> bool:
    """Whether the policy takes the job off its machine."""
    seen = there(**changes)  # type: ignore[arg-type]  # fields by name
    plan = policy_named(name).decide(Board.of(seen), PolicyState(), EVERYTHING)[0]
    assert plan_breaches(seen, plan, EVERYTHING) == []
    return any(action.kind in ("demote", "migrate", "preempt") for action in plan.actions)


@pytest.mark.parametrize("name", policy_names())
def test_a_job_that_has_never_saved_stays_where_it_is(name: str) -> None:
    """It has used up its time on serverless, and a cheaper node stands ready: moved, it would begin again at step 0."""
    assert not leaves(name, saves=False, step=900)
    assert not leaves(name, saves=False, step=900, done_ms=F_MS)


@pytest.mark.parametrize("name", ["allpass", "fixed-threshold"])
def test_a_job_that_saves_when_asked_moves_before_it_has_saved_anything(name: str) -> None:
    """That is the usual case: the first checkpoint is asked for by the move."""
    assert leaves(name, saves=True, checkpoint_step=None)


def test_a_job_that_has_saved_but_does_not_when_asked_moves_right_after_a_checkpoint() -> None:
    """Steps that it would have to take again count as money and as time: hours of them keep it where it is."""
    assert leaves("allpass", saves=False, step=1_000, checkpoint_step=1_000)
    assert not leaves("allpass", saves=False, step=1_000, checkpoint_step=10, ran_for_ms=20_000_000)


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(0, 10**6), st.booleans())
def test_what_would_be_lost_is_between_nothing_and_all_of_it(ran: int, step: int, kept: int, saves: bool) -> None:
    """Nothing for a job that saves when asked, or whose newest step is kept; all of it without a checkpoint."""
    seen = running(min(ran, NOW_MS), saves=saves, step=step, checkpoint_step=kept if kept <= step else None)
    one, run = seen.jobs[0], seen.runs[0]
    lost_ms = unkept_ms(one, run, seen.now_ms)
    assert 0 <= lost_ms <= ran_ms(one, run, seen.now_ms)
    if saves or one.checkpoint_step == step:
        assert lost_ms == 0
    elif one.checkpoint_step is None:
        assert lost_ms == ran_ms(one, run, seen.now_ms)
    assert unkept_ms(one, None, seen.now_ms) == 0


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**9))
def test_a_move_that_loses_work_has_to_gain_more(source: int, target: int, lost_ms: int) -> None:
    """And never less than one that loses nothing; at prices that gain nothing it never pays."""
    plain, losing = (break_even_ms(CONFIG, source, target, lost) for lost in (0, lost_ms))
    assert (plain is None) == (losing is None) == (target >= source)
    if plain is not None and losing is not None:
        assert losing >= plain


def test_either_a_checkpoint_or_its_word_is_enough_to_be_moved() -> None:
    """And a refusal of what it saves keeps it where it is, whatever it says."""
    assert job("job_a", saves=False).stays
    assert not job("job_a", saves=False, checkpoint_step=0).stays
    assert not job("job_a", saves=True).stays
    assert job("job_a", saves=True, unsaved=True).stays


# Where a job begins that will never save


def begins(name: str, offers: tuple[Offer, ...] = OFFERS, **changes: object) -> str:
    """Where a job that waits begins, where both tiers are to be had."""
    values: dict[str, object] = {"never_saves": True, "saves": False, "start": StartRule.AUTO}
    values |= {"total_run_ms": 72_000_000, "deadline_ms": NOW_MS + 720_000_000, **changes}
    seen = snapshot(jobs=[job("job_a", **values)], offers=offers)
    plan = policy_named(name).decide(Board.of(seen), PolicyState(), EVERYTHING)[0]
    assert plan_breaches(seen, plan, EVERYTHING) == []
    return "serverless" if any(action.kind == "start" for action in plan.actions) else "rented"


@pytest.mark.parametrize("name", ["allpass", "fixed-threshold"])
def test_a_long_job_that_will_never_save_begins_on_a_rented_node(name: str) -> None:
    """From serverless it could not leave any more. One whose owner says now begins there at once."""
    assert begins(name) == "rented"
    assert begins(name, start=StartRule.NOW) == "serverless"


def test_a_short_job_or_one_that_is_due_begins_at_once_all_the_same() -> None:
    """What the node costs until it is ready has to be worth it, and no deadline is missed for it."""
    assert begins("allpass", total_run_ms=1_000) == "serverless"
    for after_ms, where in ((SERVERLESS.startup_ms, "serverless"), (MARKET.startup_ms, "rented")):
        assert begins("allpass", deadline_ms=NOW_MS + 72_000_000 + after_ms) == where


def test_a_job_that_saves_by_itself_goes_on_where_it_can_stay() -> None:
    """Its machine has failed, and the next one takes four minutes. From serverless, where one that saves when it is
    asked to goes on meanwhile, it would take nothing along. Unless its owner says now, or a deadline is near."""
    slow = (SERVERLESS, replace(MARKET, startup_ms=256_000))
    failed: dict[str, object] = {"never_saves": False, "state": JobState.WAITING, "step": 90, "checkpoint_step": 60}
    assert begins("allpass", slow, **failed, saves=True) == "serverless"
    assert begins("allpass", slow, **failed, saves=False) == "rented"
    assert begins("allpass", slow, **failed, saves=False, start=StartRule.NOW) == "serverless"
    assert begins("allpass", slow, **failed, saves=False, deadline_ms=NOW_MS + 72_010_000) == "serverless"
    assert begins("allpass", slow, **failed, saves=False, total_run_ms=60_000) == "serverless"
    for life_ms, where in ((3_599_999, "serverless"), (3_600_000, "rented")):
        failing = (SERVERLESS, replace(MARKET, startup_ms=256_000, mean_life_ms=life_ms))
        assert begins("allpass", failing, **failed, saves=False) == where


@given(st.booleans(), st.none() | st.integers(0, 9), st.booleans())
def test_a_job_saves_by_itself_or_never_or_when_asked(saves: bool, kept: int | None, known: bool) -> None:
    """Exactly one of them, as far as anybody knows."""
    one = job("job_a", saves=saves, checkpoint_step=kept, never_saves=known)
    assert [one.saves, one.saves_by_itself, one.has_never_saved].count(True) == 1


def test_it_does_not_begin_where_the_machine_ends_before_it_is_done() -> None:
    """A day on serverless is not for a job of two days that cannot be moved; for one that saves it is."""
    day_ms = 86_400_000
    rule = BillingRule(unit_ms=1_000, starts=BillingStart.READY)
    traits = (ProviderTraits("local", Tier.SERVERLESS, rule, 0, 0, 0, True, False, max_lifetime_ms=day_ms),)
    market = Market(OFFERS, (Tier.SERVERLESS,), traits)
    long = job("job_a", never_saves=True, saves=False, total_run_ms=2 * day_ms)
    found, other = market.choose(long), market.choose(replace(long, never_saves=False))
    assert found is not None
    assert other is not None
    assert (found.again, other.again) == (True, False)
    short = market.choose(replace(long, total_run_ms=day_ms // 2))
    assert short is not None
    assert not short.again
