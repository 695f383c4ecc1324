"""Estimates of when a job will be done."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.core.merging.bounds import Bounds, around, span_of
from app.core.merging.convergence import LossCurve
from app.core.progress import (
    End,
    EndBy,
    Expected,
    Finish,
    ProgressRate,
    Target,
    estimate_finish,
    expected_end,
    stated_end,
)

counts = st.integers(0, 10**6)
positive = st.integers(1, 10**6)


def finish_ms(now_ms: int, step: int, total_steps: int | None, pace: ProgressRate | None) -> int | None:
    found = estimate_finish(now_ms, step, expected_end(total_steps, ()), pace)
    return None if found is None else found.at_ms


def test_steps_left_times_the_measured_step() -> None:
    """From now on, and from the further of what was reported and what was measured."""
    pace = ProgressRate(first_step=100, first_ms=5_000, last_step=150, last_ms=10_000)
    assert finish_ms(1_000_000, 150, 250, pace) == 1_010_000
    assert finish_ms(1_000_000, 200, 250, pace) == 1_005_000
    assert finish_ms(1_000_000, 0, 250, pace) == 1_010_000
    assert finish_ms(1_000_000, 300, 250, pace) == 1_000_000


def test_what_is_not_known_is_not_guessed() -> None:
    """No total, no measurement, one point only, or a clock that stood still or ran back."""
    pace = ProgressRate(100, 5_000, 150, 10_000)
    assert finish_ms(0, 150, None, pace) is None
    assert finish_ms(0, 150, 250, None) is None
    assert finish_ms(0, 150, 250, ProgressRate(150, 5_000, 150, 10_000)) is None
    assert finish_ms(0, 150, 250, ProgressRate(100, 5_000, 150, 5_000)) is None
    assert finish_ms(0, 150, 250, ProgressRate(100, 5_000, 150, 4_000)) is None


@given(counts, counts, positive, positive, counts, counts)
def test_an_estimate_is_never_in_the_past_and_shrinks_with_progress(
    now_ms: int, first: int, steps: int, elapsed_ms: int, done: int, total: int
) -> None:
    """A step further never makes the end later."""
    pace = ProgressRate(first, 0, first + steps, elapsed_ms)
    here, further = (finish_ms(now_ms, step, total, pace) for step in (done, done + 1))
    assert here is not None
    assert further is not None
    assert now_ms <= further <= here


# By the curve of the losses

CURVE = LossCurve(b1=0.5, b2=0.01, b3=0.0, floor=1.0, noise=0.0)


def seen_until(step: int, every: int = 5) -> tuple[tuple[float, float], ...]:
    return tuple((float(at), CURVE.at(at)) for at in range(1, step + 1, every))


def test_without_a_number_of_steps_the_loss_tells() -> None:
    """The step from which on it is flat, within a twentieth; before half of the way nobody says anything, and past it
    nobody does either."""
    flat = CURVE.flat_step()
    end = expected_end(None, seen_until(round(0.7 * flat)))
    assert end is not None
    assert end.by is EndBy.LOSS
    assert abs(end.step - flat) <= 0.05 * flat
    assert expected_end(None, seen_until(round(0.3 * flat))) is None
    assert expected_end(None, seen_until(2 * flat)) is None
    assert expected_end(None, ()) is None


def test_a_number_of_steps_is_believed_over_a_loss() -> None:
    """It was said; only a target ends a job before that."""
    assert expected_end(900, seen_until(200)) == End(900, EndBy.STEPS)
    reached = CURVE.step_at(1.4)
    assert reached is not None
    seen = seen_until(round(0.7 * reached))
    end = expected_end(900, seen, Target(1.4, "min"))
    assert end is not None
    assert (end.by, abs(end.step - reached) <= 2) == (EndBy.TARGET, True)
    early = expected_end(reached - 10, seen, Target(1.4, "min"))
    assert early is not None
    assert (early.step, early.by) == (reached - 10, EndBy.STEPS)
    never = expected_end(900, seen, Target(0.9, "min"))
    assert never is not None
    assert (never.step, never.by) == (900, EndBy.STEPS)
    assert expected_end(None, seen, Target(0.9, "min")) is None


def test_a_metric_that_is_to_rise_is_judged_upside_down() -> None:
    """Accuracy that comes near to one ends where its mirrored loss would."""
    seen = seen_until(120)
    risen = tuple((step, 2.0 - loss) for step, loss in seen)
    assert expected_end(None, risen, Target(0.6, "max")) == expected_end(None, seen, Target(1.4, "min"))


@given(st.integers(0, 400), st.one_of(st.none(), st.integers(1, 2000)), st.floats(0.5, 3.0))
def test_an_end_is_never_after_what_was_said(until: int, total: int | None, value: float) -> None:
    """Whatever the curve says; and one by a curve lies ahead."""
    seen = seen_until(until, every=20)
    for target in (None, Target(value, "min")):
        end = expected_end(total, seen, target)
        assume(end is not None)
        assert end is not None
        assert total is None or end.step <= total
        assert end.by is EndBy.STEPS or end.step > seen[-1][0]
        assert (target is None) or end.by is not EndBy.LOSS


def test_a_finish_tells_how_it_is_known() -> None:
    """So that whoever reads it may judge."""
    pace, end = ProgressRate(0, 0, 100, 10_000), End(300, EndBy.TARGET, Bounds(250.4, 399.2))
    left = Expected(200, least=150, most=300, first_ms=15_000, last_ms=30_000)
    assert estimate_finish(0, 100, end, pace) == Finish(20_000, end, left)
    assert not left.exact


def test_what_was_said_is_exact() -> None:
    """Without a target the steps are as many as were said; with one it may be reached at any of them."""
    pace = ProgressRate(0, 0, 100, 10_000)
    for end in (expected_end(300, seen_until(100)), stated_end(300, has_target=False)):
        found = estimate_finish(0, 100, end, pace)
        assert found is not None
        assert found.left == Expected(200, 200, 200, 20_000, 20_000)
        assert found.left.exact
    aimed = estimate_finish(0, 100, stated_end(300, has_target=True), pace)
    assert aimed is not None
    assert (aimed.left.likely, aimed.left.least, aimed.left.most) == (200, 0, 200)


def test_bounds_are_those_of_the_curve_and_never_beyond_what_was_said() -> None:
    """A curve that is believed gives both; one that is not yet gives the earliest; without any it may be the next."""
    reached = CURVE.step_at(1.4)
    assert reached is not None
    seen = seen_until(round(0.7 * reached))
    end = expected_end(900, seen, Target(1.4, "min"))
    assert end is not None
    assert end.span == around(end.step, seen[-1][0])
    assert expected_end(end.step + 1, seen, Target(1.4, "min")) == End(
        end.step, EndBy.TARGET, Bounds(end.span.least, end.step + 1)
    )
    early = seen_until(round(0.3 * reached))
    known, unseen = (expected_end(900, one, Target(1.4, "min")) for one in (early, ()))
    curve = span_of(early, 1.4)
    assert curve is not None
    assert known == End(900, EndBy.STEPS, Bounds(curve.least, 900.0))
    assert unseen == End(900, EndBy.STEPS, Bounds(0.0, 900.0))


@settings(max_examples=60)  # six fits each
@given(counts, st.none() | counts, st.lists(st.tuples(st.floats(0, 1e6), st.floats()), max_size=20), st.floats())
def test_bounds_hold_the_likely_end_whatever_was_measured(
    step: int, total: int | None, seen: list[tuple[float, float]], value: float
) -> None:
    """Losses that are no numbers, jumps, a target that is none: all three are in order, and in the future."""
    for target in (None, Target(value, "min"), Target(value, "max")):
        finish = estimate_finish(1_000, step, expected_end(total, seen, target), ProgressRate(0, 0, 10, 1_000))
        if finish is not None:
            left = finish.left
            assert 0 <= left.least <= left.likely <= left.most
            assert 1_000 <= left.first_ms <= finish.at_ms <= left.last_ms
