"""Machines that start late or never, what they fetch, and what that costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.simulator.scenario import Scenario, SimulatedMarket
from app.simulator.worlds.hosts import NEVER_MS, RoughCloud
from app.simulator.worlds.known import FRIENDLY, MEASURED
from app.simulator.worlds.world import World
from tests.simulator.scenarios import market, task

HOUR_MS = 3_600_000
LINK = {"marketplace.link_least_mbps": 1_000.0, "marketplace.link_most_mbps": 1_000.0}  # a gigabyte takes 8 s


def cloud(figures: World, on: SimulatedMarket | None = None, seed: int = 0) -> RoughCloud:
    return RoughCloud(Scenario((), market() if on is None else on, seed, world=figures))


def offer(of: RoughCloud, tier: Tier = Tier.MARKETPLACE, gpus: int = 1) -> Offer:
    plain = market().offers(0, (gpus,), {})
    return next(one for one in of.supply.offers(plain, 0) if one.tier == tier)


def starts(figures: World, tier: Tier, many: int = 3_000) -> list[int]:
    """How long machines of the tier take."""
    of = cloud(figures, market(random_startups=True))
    return [of.rent(offer(of, tier), 0)[1] for _ in range(many)]


def test_some_starts_never_end_and_some_end_late() -> None:
    """As many as are said, of three thousand; `--startup mean` knows none of it."""
    figures = FRIENDLY.having(
        {"serverless.never_share": 0.03, "serverless.slow_share": 0.05, "serverless.slow_s": 300.0}
    )
    took_ms = starts(figures, Tier.SERVERLESS)
    assert sum(one >= NEVER_MS for one in took_ms) / len(took_ms) == pytest.approx(0.03, abs=0.01)
    late = [one for one in took_ms if 300_000 <= one < NEVER_MS]
    assert len(late) / len(took_ms) == pytest.approx(0.05, abs=0.015)
    assert max(late) <= 900_000
    calm = cloud(figures)
    assert {calm.rent(offer(calm, Tier.SERVERLESS), 0)[1] for _ in range(500)} == {4_000}


def test_a_cold_start_takes_as_many_times_longer() -> None:
    """Half of them, and the others are as they would be without cold ones."""
    warm = starts(FRIENDLY, Tier.SERVERLESS)
    mixed = starts(FRIENDLY.having({"serverless.cold_share": 0.5, "serverless.cold_mean_s": 38.8}), Tier.SERVERLESS)
    cold = [(one, usual) for one, usual in zip(mixed, warm, strict=True) if one != usual]
    assert len(cold) / len(warm) == pytest.approx(0.5, abs=0.03)
    assert all(one == pytest.approx(10 * usual, abs=1) for one, usual in cold)


def test_an_image_is_pulled_while_it_boots() -> None:
    of = cloud(FRIENDLY.having({**LINK, "marketplace.image_gb": 8.0}))
    assert of.rent(offer(of), 1_000)[1] == 1_000 + 36_000 + 64_000
    assert of.rent(offer(of, Tier.CONVENTIONAL), 0)[1] == 256_000


def test_a_machine_fetches_what_it_has_not() -> None:
    """Environment and model once, the data of each job each time; a second model is fetched beside the first."""
    figures = FRIENDLY.having(
        {**LINK, "marketplace.environment_gb": 3.0, "model_gb": 16.0, "data_gb": 0.5, "models": 2}
    )
    of = cloud(figures)
    node = of.rent(offer(of), 0)[0].node_id
    first, other = task("a", 60), task("b", 60, model=1)
    assert [of.fetch_ms(node, one) for one in (first, first, other, first)] == [156_000, 4_000, 132_000, 4_000]


def test_disk_and_traffic_are_billed() -> None:
    """Ready after an hour, given back after two: the disk from the request on, the GPU from ready on, and each
    gigabyte once."""
    figures = FRIENDLY.having(
        {**LINK, "marketplace.image_gb": 8.0, "marketplace.storage_usd": 0.01, "marketplace.traffic_usd": 0.005}
        | {"model_gb": 16.0}
    )
    of = cloud(figures)
    node = of.rent(offer(of), 0)[0].node_id
    of.ready(node, HOUR_MS)
    of.fetch_ms(node, task("a", 60))
    bill = of.end(node, 2 * HOUR_MS)
    assert bill == Money(740_000 + 2 * 10_000 + 24 * 5_000)
    assert (of.bills["vast"], of.storage, of.traffic) == (bill.micros, 10_000, 120_000)


def test_a_start_that_is_given_up_costs_its_disk() -> None:
    of = cloud(FRIENDLY.having({"marketplace.storage_usd": 0.01, "marketplace.image_gb": 8.0}))
    node = of.rent(offer(of), 0)[0].node_id
    assert of.end(node, HOUR_MS // 2) == Money(5_000)


def test_two_hosts_fetch_and_store_twice() -> None:
    """Sixteen GPUs are two machines."""
    figures = FRIENDLY.having(
        {**LINK, "model_gb": 1.0, "marketplace.traffic_usd": 0.005, "marketplace.storage_usd": 0.01}
    )
    of = cloud(figures)
    node = of.rent(offer(of, gpus=16), 0)[0].node_id
    of.ready(node, HOUR_MS)
    assert of.fetch_ms(node, task("a", 60, gpus=16)) == 8_000
    of.end(node, HOUR_MS)
    assert (of.storage, of.traffic) == (20_000, 10_000)


@given(
    st.lists(st.tuples(st.integers(0, HOUR_MS), st.integers(0, HOUR_MS), st.booleans()), min_size=1, max_size=12),
    st.integers(0, 9),
)
def test_bills_add_up_to_the_micro_dollar(rents: list[tuple[int, int, bool]], seed: int) -> None:
    """The company's bill is the sum of those of its machines, all of them whole micro-dollars, whatever was drawn."""
    of = cloud(MEASURED.having({"marketplace.drought_share": 0.0}), market(random_startups=True), seed)
    bills = []
    for boots_ms, runs_ms, comes_up in rents:
        node = of.rent(offer(of), 0)[0].node_id
        if comes_up:
            of.ready(node, boots_ms)
            of.fetch_ms(node, task("a", 60))
        bills.append((node, boots_ms + (runs_ms if comes_up else 0)))
    total = sum(of.end(node, until_ms).micros for node, until_ms in bills)
    assert isinstance(total, int)
    assert of.bills["vast"] == total
    assert 0 <= of.storage + of.traffic <= total
    assert not of.machines
