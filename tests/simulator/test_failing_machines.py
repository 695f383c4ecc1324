"""Machines that fail often: what that costs beside the simplest broker, which rents another one each time."""

from __future__ import annotations

import pytest

from app.core.model.plan import ActionKind
from app.simulator.cloud import Cloud
from app.simulator.options import Options
from app.simulator.regret import Case, regret_of
from app.simulator.running import simulate
from app.simulator.traces.generating import generate
from tests.simulator.scenarios import market, task
from tests.simulator.scenarios import simulate as play
from tests.simulator.test_engine import dying

TRACE = generate("seren", 200, 0)


def failing(life_s: int) -> Options:
    return Options().having("market.mean_life_s.marketplace", str(life_s))


@pytest.mark.parametrize("life_s", [600, 3_600])
def test_failures_cost_hardly_more_than_they_cost_a_broker(life_s: int) -> None:
    """Within 5 % of its bill (2 % where nothing fails), with half of its late jobs where failures are rare and two
    thirds where they are not; who waits how long is chance. The broker has the same market: it learns, too."""
    found = simulate(TRACE, ["allpass", "cheapest-first"], failing(life_s), range(3))["policies"]
    ours, broker = found["allpass"], found["cheapest-first"]
    assert ours["faults"] > 10
    assert ours["cost_usd"] <= 1.05 * broker["cost_usd"]
    assert ours["mean_wait_s"] <= 1.2 * broker["mean_wait_s"]
    assert ours["deadline_misses"] <= broker["deadline_misses"] * (0.5 if life_s > 600 else 0.67)


@pytest.mark.parametrize(("life_s", "cheaper"), [(600, 0.15), (1_200, 0.05)])
def test_what_was_learned_of_machines_pays(monkeypatch: pytest.MonkeyPatch, life_s: int, cheaper: float) -> None:
    """Saves are closer, so that less work is done twice: jobs cost less and wait less than without."""
    learned = simulate(TRACE, ["allpass"], failing(life_s), range(3))["policies"]["allpass"]
    monkeypatch.setattr(Cloud, "learn", lambda _self, _now_ms: [])
    blind = simulate(TRACE, ["allpass"], failing(life_s), range(3))["policies"]["allpass"]
    assert learned["cost_usd"] <= (1 - cheaper) * blind["cost_usd"]
    assert learned["mean_wait_s"] < blind["mean_wait_s"]
    assert learned["lost_s"] < 0.65 * blind["lost_s"]


def test_a_market_whose_machines_live_for_two_minutes_is_left() -> None:
    """An hour of work costs more there than at the dearer company. Now and then it is tried again."""
    found = simulate(TRACE, ["allpass"], failing(120), range(2))["policies"]["allpass"]
    rented = found["gpu_hours_by_provider"]
    assert rented["lambda"] > 10 * rented["vast"]
    assert 0 < found["faults"] < len(TRACE.jobs)


def test_each_time_it_waits_for_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four nodes fail under it in an hour; it never starts on serverless in between."""
    dying(monkeypatch, 1_500, 1_500, 700, 1_300)
    seen = play("allpass", task("a", 5_000), on=market())
    assert seen.outcome("a").faults == 4
    assert [at_s for at_s, _ in seen.of(ActionKind.START)] == []
    assert seen.outcome("a").tiers == "mmmmm"


def test_who_is_late_anyway_waits_for_another_node_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not start on serverless after each failure, only to move off again: that is dearer, and later still."""
    dying(monkeypatch, 1_500, 1_500, 700, 1_300)
    seen = play("allpass", task("a", 5_000, due_s=4_000), on=market())
    assert seen.outcome("a").missed
    assert seen.outcome("a").moves <= 1
    assert seen.outcome("a").tiers.endswith("mmmm")


@pytest.mark.parametrize("number", [33, 52])
def test_what_a_search_found_is_gone(number: int) -> None:
    """Jobs past their deadlines on machines that live for ten minutes: they cost twice the simplest broker's."""
    assert regret_of(Case.drawn(number)).excess < 0.03


def test_in_a_hurry_it_goes_back_to_serverless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two moves and a quarter more work no longer fit before its deadline."""
    dying(monkeypatch, 1_500)
    seen = play("allpass", task("a", 5_000, due_s=6_300), on=market())
    assert seen.outcome("a").tiers.startswith("ms")
    assert not seen.outcome("a").missed
