"""The price list, and what is asked of Modal for an offer."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.dated_prices import prices_in_use
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.price_list import ListedPrice, OwnPrice
from providers.modal.catalogue import GIB, Catalogue, Shape

SMALL = Shape(cpus=2, memory_gib=16)


def test_a_price_is_that_of_gpus_cpus_and_memory_together() -> None:
    """What an offer costs is all that Modal bills: GPU, CPU and memory, for as many GPUs as it has."""
    one, two = (Catalogue(SMALL).current(f"T4:{count}") for count in (1, 2))
    assert one is not None
    assert two is not None
    assert one.price_per_hour == Money(590_400 + 2 * 141_480 + 16 * 23_976)
    assert two.price_per_hour.micros == 2 * one.price_per_hour.micros
    assert (two.gpu_count, two.cpus, two.memory_bytes) == (2, 4, 32 * GIB)


def test_every_offer_is_serverless_and_named_once() -> None:
    """The list has every GPU in every count that Modal allows, each under its own name."""
    offers = Catalogue(SMALL).offers()
    assert len({offer.key for offer in offers}) == len(offers)
    assert {offer.tier for offer in offers} == {Tier.SERVERLESS}
    assert {offer.gpu_count for offer in offers if offer.gpu_type == "A10"} == {1, 2, 4}
    assert {offer.gpu_memory_bytes // GIB for offer in offers if offer.gpu_type == "A100"} == {40, 80}


def test_prices_can_be_given() -> None:
    """A price from the settings takes the place of the published one, to the micro-dollar."""
    prices = {"H100": Decimal("2.5"), "cpu": Decimal(0), "memory_gib": Decimal("0.000001")}
    offer = Catalogue(SMALL, usd_per_hour=prices).current("H100:1")
    assert offer is not None
    assert offer.price_per_hour == Money(2_500_000 + 16)


def test_only_the_gpus_that_are_wanted_are_offered() -> None:
    """A list of names in the settings leaves out all others."""
    assert {offer.gpu_type for offer in Catalogue(SMALL, gpus=["L4", "T4"]).offers()} == {"L4", "T4"}
    assert Catalogue(SMALL, gpus=["L4"]).current("T4:1") is None


@pytest.mark.parametrize(("gpus", "prices"), [(["H900"], {}), (None, {"H900": Decimal(1)})])
def test_a_name_that_is_not_in_the_list_is_refused(gpus: list[str] | None, prices: dict[str, Decimal]) -> None:
    """A misspelt GPU is told, with the names that there are."""
    with pytest.raises(ValueError, match=r"no H900; it has A10, A100-40GB"):
        Catalogue(SMALL, gpus=gpus, usd_per_hour=prices)


@pytest.mark.parametrize(
    ("offer_id", "asked"), [("H100:2", "H100!:2"), ("A100-80GB:1", "A100-80GB:1"), ("T4:8", "T4:8")]
)
def test_no_other_card_than_the_one_that_was_chosen(offer_id: str, asked: str) -> None:
    """Modal may upgrade a plain H100 or A100: it is asked so that it does not."""
    catalogue = Catalogue(SMALL)
    offer = catalogue.current(offer_id)
    assert offer is not None
    assert catalogue.gpu_argument(offer) == asked


def test_the_list_has_what_is_rented_with_its_day_and_what_the_settings_say() -> None:
    """GPUs that are not offered have no place on it: nobody needs to look after their prices."""
    listed = Catalogue(SMALL, gpus=["H100"], usd_per_hour={"cpu": Decimal("0.2"), "T4": Decimal(1)}).price_list()
    assert listed.as_of == "2026-05-07"
    assert listed.prices == (
        ListedPrice("H100", Money(3_949_200), "H100"),
        ListedPrice("cpu", Money(141_480), None, Money(200_000)),
        ListedPrice("memory_gib", Money(23_976)),
    )


@given(st.dictionaries(st.sampled_from(["H100", "T4", "cpu", "memory_gib", "H900"]), st.integers(1, 10**10)))
def test_an_offer_costs_what_its_prices_in_use_add_up_to(micros: dict[str, int]) -> None:
    """An owner's price counts before that of the settings, and this before the published one: in offers as in what
    people are shown, and at the create call as in the listing."""
    catalogue = Catalogue(SMALL, usd_per_hour={"T4": Decimal("0.5"), "cpu": Decimal("0.2")})
    own = {name: Money(price) for name, price in micros.items()}
    told = [OwnPrice(name, price, "2026-11-20", 1, "key_1") for name, price in own.items()]
    used = {one.name: one.used.micros for one in prices_in_use(catalogue.price_list(), told).prices if one.used}
    for offer in catalogue.offers(own):
        gpu, _, count = offer.offer_id.partition(":")
        each = used[gpu] + 2 * used["cpu"] + 16 * used["memory_gib"]
        assert offer.price_per_hour == Money(int(count) * each)
        assert catalogue.current(offer.offer_id, own) == offer
