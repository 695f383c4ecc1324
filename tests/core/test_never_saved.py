"""Jobs that have never saved: no plan takes them off their machine; those that have, but do not when asked, weigh the
steps that they would lose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.invariants import plan_breaches
from app.core.model.money import Money
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named, policy_names
from app.core.policies.weighing import break_even_ms
from app.core.policy import PolicyState
from app.core.remaining import ran_ms, unkept_ms
from tests.core.plans import F_MS, running
from tests.core.samples import ALL_ACTIONS, CONFIG, NOW_MS, job, node

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
