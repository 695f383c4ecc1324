"""What the local cloud lists: the published figures, and the same for the same seed."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.local.market import GPUS, RULES, LocalCatalogue, RentalClass, draw_lognormal

DRAWS = 6_000
PUBLISHED_STARTUP_S = {  # the Allpass paper, Table 3: mean and standard deviation
    RentalClass.SERVERLESS: (3.88, 1.84),
    RentalClass.MARKETPLACE: (36.04, 7.35),
    RentalClass.CONVENTIONAL: (255.59, 26.26),
}
PUBLISHED_A100_MICROS = {RentalClass.SERVERLESS: 2_100_000, RentalClass.CONVENTIONAL: 1_290_000}  # Table 2
MEDIAN_A100_MICROS = 1_080_000


@pytest.mark.parametrize("rental_class", list(RentalClass))
@pytest.mark.parametrize("speed", [1.0, 0.1])
def test_startup_times_have_the_published_moments(rental_class: RentalClass, speed: float) -> None:
    """Many start-ups of a class have the paper's mean and standard deviation, times the speed, and are positive."""
    market = LocalCatalogue(11, speed)
    draws = [market.startup_ms(rental_class, number) for number in range(DRAWS)]
    mean_s, sd_s = PUBLISHED_STARTUP_S[rental_class]
    # five standard errors of the mean; the deviation's own error is wider for a skewed distribution
    assert statistics.mean(draws) / 1000 == pytest.approx(mean_s * speed, abs=5 * sd_s * speed / DRAWS**0.5 + 1e-3)
    assert statistics.stdev(draws) / 1000 == pytest.approx(sd_s * speed, rel=0.08)
    assert min(draws) > 0


@given(mean=st.floats(0.1, 1e6), spread=st.floats(0.001, 1.5), seed=st.integers(0, 2**32))
def test_a_lognormal_is_matched_by_its_own_moments(mean: float, spread: float, seed: int) -> None:
    """The matched distribution has its median below its mean by the factor that its spread implies."""
    chance = random.Random(seed)
    draws = [draw_lognormal(chance, mean, mean * spread) for _ in range(5)]
    again = random.Random(seed)
    assert draws == [draw_lognormal(again, mean, mean * spread) for _ in range(5)]
    assert all(draw > 0 for draw in draws)


def test_no_speed_means_no_delay() -> None:
    """At speed 0 nothing waits."""
    market = LocalCatalogue(1, 0)
    assert {market.startup_ms(each, number) for each in RentalClass for number in range(50)} == {0}
    assert {market.expected_startup_ms(each) for each in RentalClass} == {0}


@pytest.mark.parametrize("speed", [-0.1, float("nan"), float("inf")])
def test_an_impossible_speed_is_refused(speed: float) -> None:
    """A speed that is negative or no number is refused with what would be accepted."""
    with pytest.raises(ValueError, match="0 or greater"):
        LocalCatalogue(1, speed)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**63), other=st.integers(0, 2**63))
def test_a_seed_fixes_the_offers(seed: int, other: int) -> None:
    """The same seed gives the same offers and start-ups; the ids, and all but marketplace prices, fit any seed."""
    market, again, another = LocalCatalogue(seed, 1), LocalCatalogue(seed, 1), LocalCatalogue(other, 1)
    assert market.offers == again.offers
    draws = [market.startup_ms(each, 5) for each in RentalClass]
    assert draws == [again.startup_ms(each, 5) for each in RentalClass]
    fixed = {key: offer for key, offer in market.offers.items() if not offer.single}
    assert fixed == {key: offer for key, offer in another.offers.items() if not offer.single}


def test_two_seeds_price_the_market_differently() -> None:
    """Marketplace hosts have their own prices, and another seed gives others."""
    prices = [[offer.price_micros_per_hour for offer in LocalCatalogue(seed, 1).offers.values()] for seed in (1, 2)]
    assert prices[0] != prices[1]


@settings(max_examples=25)
@given(seed=st.integers(0, 2**63))
def test_marketplace_prices_lie_in_the_published_range(seed: int) -> None:
    """Each host asks a price per GPU between the published lowest and highest; half of them at most the median."""
    published = {gpu.name: gpu.marketplace for gpu in GPUS if gpu.marketplace}
    for name, bounds in published.items():
        hosts = [offer for offer in LocalCatalogue(seed, 1).offers.values() if offer.single and offer.gpu_type == name]
        prices = [offer.price_micros_per_hour // offer.gpu_count for offer in hosts]
        lowest, median, highest = (round(float(bound) * 1_000_000) for bound in bounds)
        assert all(lowest <= price <= highest for price in prices)
        assert 2 * sum(price <= median for price in prices) >= len(prices)
        assert any(offer.gpu_count == 1 for offer in hosts)


@pytest.mark.parametrize("seed", range(5))
def test_an_a100_costs_what_the_paper_says(seed: int) -> None:
    """List prices are the published ones per GPU; the marketplace's are spread around the published median."""
    offers = [offer for offer in LocalCatalogue(seed, 1).offers.values() if offer.gpu_type == "A100"]
    for rental_class, per_gpu in PUBLISHED_A100_MICROS.items():
        listed = [offer for offer in offers if offer.rental_class is rental_class]
        assert {offer.gpu_count for offer in listed} == {1, 2, 4, 8}
        assert all(offer.price_micros_per_hour == per_gpu * offer.gpu_count for offer in listed)
    hosts = [offer.price_micros_per_hour / offer.gpu_count for offer in offers if offer.single]
    assert min(hosts) < MEDIAN_A100_MICROS < max(hosts)


def test_bigger_offers_are_bigger_in_all() -> None:
    """CPUs and memory grow with the GPUs of an offer, and every offer has some of each."""
    for offer in LocalCatalogue(1, 1).offers.values():
        assert offer.cpus % offer.gpu_count == 0
        assert min(offer.cpus, offer.memory_bytes, offer.gpu_memory_bytes, offer.price_micros_per_hour) > 0
        assert offer.single == (offer.rental_class is RentalClass.MARKETPLACE)


def test_billing_follows_the_three_companies() -> None:
    """Seconds from the request, seconds from ready, and started minutes from ready."""
    billing = {each: (rules.billing_unit_ms, rules.billed_from_request) for each, rules in RULES.items()}
    assert billing == {
        RentalClass.SERVERLESS: (1_000, True),
        RentalClass.MARKETPLACE: (1_000, False),
        RentalClass.CONVENTIONAL: (60_000, False),
    }
