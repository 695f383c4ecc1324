"""How long machines live, learned from those that were rented, and what an hour of work costs on them."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.machine_lives import (
    COUNTS_FOR_MS,
    HALF_LIFE_MS,
    Lived,
    MachineLives,
    dearer,
    fading,
    saves_every_ms,
    weighed_micros,
    with_lives,
)
from app.core.model.money import Money
from app.core.model.node import Tier
from tests.core.samples import CLOUD, MARKET, node, offer

HOUR_MS = 3_600_000
PROVIDER, TYPE = MARKET.provider, MARKET.gpu_type


def lived(hours: float, failures: float, *, project: str = "proj_a", gpu_type: str = TYPE, **other: str) -> Lived:
    tier = Tier(other.get("tier", Tier.MARKETPLACE))
    return Lived(other.get("provider", PROVIDER), tier, gpu_type, project, hours * HOUR_MS, failures)


def mean_h(*seen: Lived, gpu_type: str = TYPE) -> float:
    return MachineLives(seen).mean_ms(PROVIDER, Tier.MARKETPLACE, gpu_type) / HOUR_MS


# What is learned


def test_without_failures_nothing_is_said() -> None:
    assert mean_h() == 0
    assert mean_h(lived(1_000, 0)) == 0
    assert mean_h(lived(5, 3, provider="other")) == 0
    assert mean_h(lived(5, 3, tier=Tier.CONVENTIONAL)) == 0


def test_many_failures_speak_for_themselves() -> None:
    """Ten in twenty hours are one every two; the hours that were believed in before hardly count."""
    assert mean_h(lived(20, 10)) == pytest.approx(2, rel=0.1)


def test_one_failure_is_no_pattern() -> None:
    """A machine that failed in its first minutes is weighed with the hours that were expected of it."""
    assert 0.9 <= mean_h(lived(0.1, 1)) <= 1.5
    assert mean_h(lived(100, 1)) == pytest.approx(100, rel=0.05)


def test_of_a_type_that_few_were_rented_of_its_company_is_asked() -> None:
    """Where the H100s of a company fail every hour, its A100s, of which none was rented, are taken to do so, too; once
    they have lived for long, they speak for themselves."""
    bad = lived(50, 50, gpu_type="H100")
    assert mean_h(bad, gpu_type="A100") == pytest.approx(1, rel=0.1)
    assert mean_h(bad, lived(200, 0, gpu_type="A100"), gpu_type="A100") > 50


def test_two_digits_of_a_mean_life_count() -> None:
    """A plan does not change with each minute that machines live on."""
    assert mean_h(lived(20.001, 10)) == mean_h(lived(20.002, 10))


def test_who_breaks_machines_on_purpose_makes_them_dearer_for_nobody_else() -> None:
    """A hundred failures in one hour, of one project; the others' machines live."""
    good = lived(50, 0, project="proj_b")
    assert mean_h(lived(1, 100, project="proj_evil"), good) == 0
    seldom = lived(50, 1, project="proj_b")
    assert mean_h(lived(1, 100, project="proj_evil"), seldom) == mean_h(seldom)


def test_what_two_projects_see_is_believed() -> None:
    assert mean_h(lived(2, 4, project="proj_a"), lived(2, 4, project="proj_b")) < 1


_lived = st.builds(
    lived,
    st.floats(0, COUNTS_FOR_MS / HOUR_MS),
    st.sampled_from([0, 0.001, 1, 3, 1_000]),
    project=st.sampled_from(["a", "b", "c"]),
    gpu_type=st.sampled_from([TYPE, "H100"]),
)


@given(st.lists(_lived, max_size=8))
def test_no_project_alone_makes_machines_look_worse(seen: list[Lived]) -> None:
    """Whatever one project saw: machines look no worse than the others together have found them."""
    projects = {one.project_id for one in seen}
    for left_out in projects if len(projects) > 1 else ():
        others = [replace(one, project_id="others") for one in seen if one.project_id != left_out]
        # Two digits count: what is left of a difference of sums may round otherwise.
        assert (mean_h(*seen) or math.inf) >= 0.9 * (mean_h(*others) or math.inf)


@given(st.lists(_lived, max_size=8), st.sampled_from([TYPE, "H100", "never seen"]))
def test_a_mean_life_is_some_time_or_none(seen: list[Lived], gpu_type: str) -> None:
    found = MachineLives(seen).mean_ms(PROVIDER, Tier.MARKETPLACE, gpu_type)
    assert found == 0 or 1 <= found < 2**63


def test_twenty_thousand_offers_and_a_thousand_projects_take_no_time() -> None:
    """Each kind is reckoned once, in one pass over what is known of its tier: lists are long in a large market."""
    seen = [lived(1, 1, project=f"proj_{n}", gpu_type=f"type {n % 20}") for n in range(2_000)]
    offers = [offer(str(n), Tier.MARKETPLACE, provider=PROVIDER, gpu_type=f"type {n % 40}") for n in range(20_000)]
    begun_s = time.process_time()
    lives = MachineLives(seen)
    assert all(lives.told_of(one).mean_life_ms > 0 for one in offers)
    assert time.process_time() - begun_s < 5


def test_what_is_long_ago_counts_less() -> None:
    assert fading(0) == 1
    assert fading(HALF_LIFE_MS) == 0.5
    assert fading(COUNTS_FOR_MS) < 0.01
    assert fading(-5) == 1  # another process's clock


# What it costs


@pytest.mark.parametrize(
    ("mean_life_s", "every_s"),
    [(0, 600), (60, 60), (180, 60), (600, 109.5), (3_600, 268.3), (18_000, 600), (86_400, 600)],
)
def test_saves_are_closer_where_machines_fail(mean_life_s: int, every_s: float) -> None:
    """The square root of twice a save's cost (10 s) times the mean life (Young 1974); a minute at least, as usual at
    most."""
    assert saves_every_ms(mean_life_s * 1_000) / 1_000 == pytest.approx(every_s, abs=0.1)
    assert saves_every_ms(mean_life_s * 1_000, 30_000) == 30_000


@pytest.mark.parametrize(
    ("mean_life_s", "restart_s", "times"),
    [
        (0, 36, 1.0),  # none has failed
        (120, 0, (math.e ** (70 / 120) - 1) * 2 / (610 / 600)),  # two lives in a stretch of a minute and a save
        (120, 36, (math.e ** (70 / 120) - 1) * 2.6 / (610 / 600)),
        (600, 36, 1.2591),  # by hand: (exp(119.5 / 600) - 1) 636 / 109.5 / 1.0167
        (3_600, 36, 1.0713),
        (86_400, 36, 1.0040),
        (1, 36, 1_000.0),  # no work is ever done
    ],
)
def test_an_hour_of_work_costs_more_than_an_hour(mean_life_s: int, restart_s: int, times: float) -> None:
    """Daly 2006, equation 20, beside what saves cost where nothing fails."""
    assert dearer(mean_life_s * 1_000, restart_s * 1_000) == pytest.approx(times, abs=1e-4)


@given(st.integers(1, 2**62), st.integers(0, 2**62), st.integers(0, 10**7))
def test_longer_lives_are_never_dearer(life_ms: int, longer_ms: int, restart_ms: int) -> None:
    """Nor cheaper than no failures at all, nor dearer than the bound."""
    shorter, longer = dearer(life_ms, restart_ms), dearer(life_ms + longer_ms, restart_ms)
    assert 1 - 1e-9 <= longer <= shorter * (1 + 1e-9) <= 1_000 * (1 + 1e-9)


@given(st.integers(-(2**70), 2**70), st.integers(-(2**70), 2**70))
def test_any_number_of_a_row_has_a_weight(life_ms: int, restart_ms: int) -> None:
    """What no clock shows is bounded, and raises nothing: one bad row must not stop a decision."""
    assert 0 < dearer(life_ms, restart_ms) <= 1_000


def test_offers_and_their_nodes_are_weighed_alike() -> None:
    failing = offer("bad", Tier.MARKETPLACE, "0.60", startup_ms=36_000, mean_life_ms=600_000)
    machine = node(
        "node_a",
        price_per_hour=Money.usd("0.60"),
        requested_ms=5_000,
        expected_ready_ms=41_000,
        mean_life_ms=600_000,
    )
    assert weighed_micros(failing) == weighed_micros(machine) == pytest.approx(600_000 * 1.2591, rel=1e-4)
    assert weighed_micros(MARKET) == MARKET.price_per_hour.micros


def test_nodes_live_as_long_as_offers_of_their_kind() -> None:
    """Of a kind that is not on offer nothing is known."""
    failing = offer("bad", Tier.MARKETPLACE, gpu_type="A100", mean_life_ms=600_000)
    ours = [
        node("node_a", provider=failing.provider, gpu_type="A100"),
        node("node_b", provider=failing.provider, gpu_type="H100"),
        node("node_c", tier=Tier.CONVENTIONAL, provider=failing.provider, gpu_type="A100"),
    ]
    assert [one.mean_life_ms for one in with_lives(ours, [failing, CLOUD])] == [600_000, 0, 0]
    assert with_lives(ours, [CLOUD]) == tuple(ours)


def test_an_offer_that_is_told_of_nothing_new_stays_the_same() -> None:
    lives = MachineLives([lived(20, 10)])
    told = lives.told_of(MARKET)
    assert told.mean_life_ms > 0
    assert lives.told_of(told) is told
    assert MachineLives([]).told_of(told) == MARKET  # the failures are forgotten
