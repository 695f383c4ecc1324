"""From the first losses to the steps that are left."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.merging.convergence import LossCurve, fit_curve, steps_left, steps_together

CURVES = st.builds(
    LossCurve,
    b1=st.floats(0.1, 2.0),
    b2=st.floats(1e-4, 0.1),
    b3=st.one_of(st.just(0.0), st.floats(1e-8, 1e-4)),
    floor=st.floats(0.0, 3.0),
    noise=st.just(0.0),
)


def losses_of(curve: LossCurve, steps: int, noise: float = 0.0, seed: int = 0) -> list[float]:
    drawn = np.random.default_rng(seed).normal(0, noise, steps) if noise else np.zeros(steps)
    return [curve.at(step) + float(drawn[step]) for step in range(steps)]


@given(CURVES)
def test_where_it_is_flat(curve: LossCurve) -> None:
    """From that step on it falls by at most 0.001 per step; one step before, it falls by more."""
    step = curve.flat_step()
    assert curve.falls_at(step) <= 0.001
    assert step == 0 or curve.falls_at(step - 1) > 0.001 or step - 1 < curve._steepest()
    assert all(curve.falls_at(step + later) <= 0.001 + 1e-12 for later in (1, 10, 1000, 10**6))


@given(CURVES, st.floats(0.01, 0.99))
def test_when_a_target_is_reached(curve: LossCurve, share: float) -> None:
    """The first step at or below it; a target below the floor is out of reach."""
    target = curve.floor + share * (curve.at(0) - curve.floor)
    step = curve.step_at(target)
    assert step is not None
    assert curve.at(step) <= target
    assert step == 0 or curve.at(step - 1) > target
    assert curve.step_at(curve.floor - 0.1) is None


@pytest.mark.parametrize(("b2", "b3"), [(0.01, 0.0), (0.002, 1e-5), (0.05, 0.0)])
def test_exact_losses_give_the_curve_back(b2: float, b3: float) -> None:
    """From the first third of the way, the end is found within five percent."""
    true = LossCurve(0.4, b2, b3, 0.7, 0.0)
    end = true.flat_step()
    seen = fit_curve(range(end // 3), losses_of(true, end // 3))
    assert seen is not None
    assert seen.flat_step() == pytest.approx(end, rel=0.05)


def test_noise_and_outliers() -> None:
    """Noise of a hundredth, and a loss now and then that is far off: a third of the way shows the end within 20 %."""
    true = LossCurve(0.5, 0.02, 0.0, 1.0, 0.0)
    end = true.flat_step()
    losses = losses_of(true, end // 3, noise=0.01, seed=4)
    losses[7] += 3
    losses[30] += 5
    seen = fit_curve(range(len(losses)), losses)
    assert seen is not None
    assert seen.flat_step() == pytest.approx(end, rel=0.2)
    assert seen.noise < 1


@pytest.mark.parametrize(
    "losses",
    [[], [1.0] * 4, [1.0] * 50, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [math.nan] * 50],
    ids=["none", "too few", "constant", "rising", "not numbers"],
)
def test_what_is_no_curve(losses: list[float]) -> None:
    """Nothing is predicted from it."""
    assert fit_curve(range(len(losses)), losses) is None


def test_what_is_not_finite_is_left_out() -> None:
    """One NaN among the losses changes nothing."""
    true = LossCurve(0.5, 0.02, 0.0, 1.0, 0.0)
    losses = losses_of(true, 60)
    steps = list(range(60))
    with_nan = fit_curve([*steps, 60], [*losses, math.nan])
    assert with_nan == fit_curve(steps, losses)


def test_long_series_cost_no_more() -> None:
    """A hundred thousand losses are averaged in stretches first."""
    true = LossCurve(0.5, 0.001, 0.0, 1.0, 0.0)
    seen = fit_curve(range(100_000), losses_of(true, 100_000))
    assert seen is not None
    assert seen.at(50_000) == pytest.approx(true.at(50_000), rel=0.05)


def test_steps_left() -> None:
    """To the target if there is one, else to the flat end; fewer under transfer; none when it is past."""
    curve = LossCurve(0.5, 0.02, 0.0, 1.0, 0.0)
    end = curve.flat_step()
    assert steps_left(curve, 10) == end - 10
    assert steps_left(curve, 10, gain=1.0) == math.ceil((end - 10) / 2)
    assert steps_left(curve, end + 5) == 0
    assert steps_left(curve, 0, target=0.5) is None
    assert steps_left(curve, 0, target=1.5) == curve.step_at(1.5)


def test_side_by_side_takes_the_sum_of_both() -> None:
    """Equation 4: 100 and 50 steps with a mean gain of a half are 100 steps."""
    assert steps_together(100, 50, 0.5) == 100
