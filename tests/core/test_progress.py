"""Estimates of when a job will be done."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from app.core.merging.convergence import LossCurve
from app.core.progress import End, EndBy, Finish, Pace, Target, estimate_finish, expected_end

counts = st.integers(0, 10**6)
positive = st.integers(1, 10**6)


def finish_ms(now_ms: int, step: int, total_steps: int | None, pace: Pace | None) -> int | None:
    found = estimate_finish(now_ms, step, expected_end(total_steps, ()), pace)
    return None if found is None else found.at_ms


def test_steps_left_times_the_measured_step() -> None:
    """From now on, and from the further of what was reported and what was measured."""
    pace = Pace(first_step=100, first_ms=5_000, last_step=150, last_ms=10_000)
    assert finish_ms(1_000_000, 150, 250, pace) == 1_010_000
    assert finish_ms(1_000_000, 200, 250, pace) == 1_005_000
    assert finish_ms(1_000_000, 0, 250, pace) == 1_010_000
    assert finish_ms(1_000_000, 300, 250, pace) == 1_000_000


def test_what_is_not_known_is_not_guessed() -> None:
    """No total, no measurement, one point only, or a clock that stood still or ran back."""
    pace = Pace(100, 5_000, 150, 10_000)
    assert finish_ms(0, 150, None, pace) is None
    assert finish_ms(0, 150, 250, None) is None
    assert finish_ms(0, 150, 250, Pace(150, 5_000, 150, 10_000)) is None
    assert finish_ms(0, 150, 250, Pace(100, 5_000, 150, 5_000)) is None
    assert finish_ms(0, 150, 250, Pace(100, 5_000, 150, 4_000)) is None


@given(counts, counts, positive, positive, counts, counts)
def test_an_estimate_is_never_in_the_past_and_shrinks_with_progress(
    now_ms: int, first: int, steps: int, elapsed_ms: int, done: int, total: int
) -> None:
    """A step further never makes the end later."""
    pace = Pace(first, 0, first + steps, elapsed_ms)
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
    assert expected_end(reached - 10, seen, Target(1.4, "min")) == End(reached - 10, EndBy.STEPS)
    assert expected_end(900, seen, Target(0.9, "min")) == End(900, EndBy.STEPS)  # never gets there
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
    pace = Pace(0, 0, 100, 10_000)
    assert estimate_finish(0, 100, End(300, EndBy.TARGET), pace) == Finish(20_000, End(300, EndBy.TARGET))
