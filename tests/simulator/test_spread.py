"""How sure a difference is: by hand, against SciPy's own test, and as the command shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from app.cli import figures
from app.simulator.options import Options
from app.simulator.running import simulate
from app.simulator.spread import COMPARED, deviations, paired
from tests.simulator.small import small_trace


def of_costs(*costs: float) -> list[dict[str, Any]]:
    return [dict.fromkeys(COMPARED, cost) for cost in costs]


def test_a_difference_by_hand() -> None:
    """1, 2 and 3 dollars less: two on average, a deviation of 1; t is 3.4641 with two degrees of freedom."""
    found = paired(of_costs(10, 20, 30), of_costs(11, 22, 33))["cost_usd"]
    assert found["mean"] == -2
    assert found["p_value"] == pytest.approx(0.0742, abs=1e-4)
    assert found["high"] - found["mean"] == pytest.approx(4.3027 / 3**0.5, abs=1e-3)
    assert found["mean"] - found["low"] == pytest.approx(found["high"] - found["mean"])


numbers = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=2, max_size=9)


@given(numbers)
def test_it_is_the_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    ours = paired(of_costs(*(one for one, _ in pairs)), of_costs(*(other for _, other in pairs)))["cost_usd"]
    assert 0 <= ours["p_value"] <= 1
    assert ours["low"] <= ours["mean"] <= ours["high"]
    differences = {one - other for one, other in pairs}
    if max(differences) - min(differences) > 1e-3:
        theirs = ttest_rel([one for one, _ in pairs], [other for _, other in pairs]).pvalue
        assert ours["p_value"] == pytest.approx(theirs, abs=1e-9)


def test_what_never_differs_is_sure_to_be_the_same() -> None:
    found = paired(of_costs(1, 2), of_costs(1, 2))["cost_usd"]
    assert found == {"mean": 0, "low": 0, "high": 0, "p_value": 1.0}
    assert figures.against_cells_of(dict.fromkeys(COMPARED, found)) == ["the same"] * 4


def test_what_always_differs_by_the_same_is_sure() -> None:
    assert paired(of_costs(3, 4), of_costs(1, 2))["cost_usd"]["p_value"] == 0


def test_deviations_are_of_all_numbers() -> None:
    several = [{"cost": 1.0, "by": {"a": 1}}, {"cost": 3.0, "by": {"a": 2}}]
    assert deviations(several) == {"cost": pytest.approx(2**0.5)}


def test_one_seed_has_no_spread() -> None:
    found = simulate(small_trace(), ["allpass", "modal-only"], Options(), (0,))
    assert set(found) == {"trace", "jobs", "policies"}


def test_seeds_have_a_spread_and_the_first_policy_is_held_against_the_others() -> None:
    """What the table says is what the figures of each seed say; all of it goes into JSON."""
    policies = ["allpass", "modal-only"]
    found = simulate(small_trace(), policies, Options(), range(3))
    each = {name: [simulate(small_trace(), [name], Options(), (seed,)) for seed in range(3)] for name in policies}
    costs = {name: [one["policies"][name]["cost_usd"] for one in each[name]] for name in policies}
    differences = [mine - theirs for mine, theirs in zip(costs["allpass"], costs["modal-only"], strict=True)]
    against = found["against"]
    assert set(against) == {"modal-only"}
    assert against["modal-only"]["cost_usd"]["mean"] == pytest.approx(sum(differences) / 3)
    assert found["spread"]["allpass"]["cost_usd"] > 0
    assert json.loads(json.dumps(found)) == found


def test_cells_say_what_may_be_chance() -> None:
    one = {"mean": -1.5, "low": -2.0, "high": -1.0, "p_value": 0.001}
    other = {"mean": 0.02, "low": -0.04, "high": 0.08, "p_value": 0.3}
    compared = {"cost_usd": one, "mean_jct_s": one, "mean_wait_s": one, "deadline_miss_share": other}
    assert figures.against_cells_of(compared) == ["-$1.50 +-$0.50", "-1.5s +-0.5s", "-1.5s +-0.5s", "+2.0% +-6.0% ~"]
