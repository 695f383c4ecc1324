"""What is searched for at Vast.ai, and how its offers are read."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from app.core.model.money import Money
from providers.vast.options import VastOptions
from providers.vast.search import our_name, read_offers, search_body, wire_names

OPTIONS = VastOptions(api_key="k", gpu_types=("A100", "RTX4090"), disk_gb=64)
ROW: dict[str, Any] = {
    "id": 123,
    "machine_id": 45,
    "gpu_name": "A100 SXM4",
    "num_gpus": 2,
    "gpu_ram": 40_960,
    "cpu_cores": 64,
    "cpu_cores_effective": 16.0,
    "cpu_ram": 512_000,
    "dph_base": 2.1,
    "dph_total": 2.11,
    "storage_cost": 0.144,
    "min_bid": 1.05,
    "geolocation": "Sweden, SE",
    "duration": 2_592_000.0,
    "rentable": True,
    "rented": False,
}


def test_all_filters_are_sent_at_the_top_level() -> None:
    """Hardware, reliability, bandwidth, CUDA and lease length are asked for, and there is always a limit."""
    assert search_body(OPTIONS) == {
        "verified": {"eq": True},
        "external": {"eq": False},
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "gpu_name": {"in": ["A100 PCIE", "A100 SXM4", "A100X", "RTX 4090"]},
        "reliability2": {"gte": 0.98},
        "inet_down": {"gte": 200},
        "inet_down_cost": {"lte": 0.05},
        "inet_up_cost": {"lte": 0.05},
        "cuda_max_good": {"gte": 13.0},
        "disk_space": {"gte": 64},
        "duration": {"gte": 86_400},
        "order": [["dph_total", "asc"]],
        "type": "on-demand",
        "limit": 512,
        "allocated_storage": 64,
    }


def test_bids_any_type_and_unverified_hosts_are_options() -> None:
    """What is not wanted is not sent; bids are another type of search."""
    body = search_body(replace(OPTIONS, gpu_types=(), verified=False), bids=True)
    assert body["type"] == "bid"
    assert not {"gpu_name", "verified"} & set(body)


def test_an_offer_is_read_with_the_price_that_will_be_billed() -> None:
    """The price is that of the GPUs and of the disk that we order; memory is our part of the host's."""
    (found,) = read_offers([ROW], OPTIONS)
    offer = found.offer
    assert offer.price_per_hour == Money(2_112_800)  # 2.1 + 64 * 0.144 / 720
    assert (offer.offer_id, offer.host, offer.gpu_type, offer.gpu_count) == ("123", "45", "A100", 2)
    assert (offer.gpu_memory_bytes, offer.cpus, offer.memory_bytes) == (40 * 1024**3, 16, 128_000 * 1024**2)
    assert (offer.region, found.bid) == ("SE", None)


@pytest.mark.parametrize(
    ("told", "micros"),
    [
        ({"inet_down_cost": 0.01, "inet_up_cost": 0.02}, 20_000),
        ({"inet_down_cost": "0.05", "inet_up_cost": None}, 50_000),
        ({"inet_down_cost": None, "inet_up_cost": 0}, 0),
        ({}, 0),
    ],
    ids=["the dearer way", "a text", "no prices", "nothing told"],
)
def test_traffic_has_a_price_of_its_own(told: dict[str, Any], micros: int) -> None:
    """Hosts take money for bytes besides hours: what the dearer direction costs is known before renting."""
    (found,) = read_offers([ROW | told], OPTIONS)
    assert found.offer.traffic_micros_per_gb == micros


@pytest.mark.parametrize("told", [-1, "NaN", float("inf"), "9" * 60, "1e999999", "", True, [1], {"a": 1}])
def test_a_price_of_bytes_that_is_none_is_not_taken_for_nothing(told: object) -> None:
    """Nobody knows what such a host would bill: it is left out, and the others stay."""
    sane = ROW | {"id": 124}
    assert [one.offer.offer_id for one in read_offers([ROW | {"inet_up_cost": told}, sane], OPTIONS)] == ["124"]


@pytest.mark.parametrize("name", ["inet_down_cost", "inet_up_cost"])
def test_hosts_that_take_too_much_for_bytes_are_left_out(name: str) -> None:
    """Also where the search let them through, and where an offer is looked at once more before it is rented."""
    assert read_offers([ROW | {name: 0.0501}], OPTIONS) == []
    assert read_offers([ROW | {name: 1}], replace(OPTIONS, most_dollars_per_gb=Decimal(1))) != []


def test_a_bid_is_above_the_lowest_and_part_of_the_price() -> None:
    """A bid is the lowest one with a margin, to a tenth of a cent; the disk comes on top."""
    (found,) = read_offers([ROW], replace(OPTIONS, bid_percent=110), bids=True)
    assert str(found.bid) == "1.155"
    assert found.offer.price_per_hour == Money(1_167_800)
    assert found.offer.interruptible


@pytest.mark.parametrize("lowest", [None, 0, -1, "free", True])
def test_a_host_that_tells_no_lowest_bid_is_not_bid_for(lowest: object) -> None:
    assert read_offers([ROW | {"min_bid": lowest}], OPTIONS, bids=True) == []
    assert read_offers([ROW | {"min_bid": lowest}], OPTIONS) != []


@pytest.mark.parametrize(
    "odd",
    [
        {"num_gpus": "2", "gpu_ram": " 40960 ", "dph_base": "2.1", "storage_cost": "0.144", "id": "123"},
        {"geolocation": " Sweden, SE \n"},
        {"ports": None, "public_ipaddr": "203.0.113.9\n", "duration": None, "reliability2": None},
    ],
    ids=["numbers as texts", "white space", "nulls"],
)
def test_odd_rows_mean_the_same(odd: dict[str, Any]) -> None:
    """However the same offer is written, it is the same offer."""
    assert read_offers([ROW | odd], OPTIONS) == read_offers([ROW], OPTIONS)


@pytest.mark.parametrize(
    ("told", "memory_mb"),
    [
        ({"cpu_cores": None, "gpu_frac": 0.5}, 256_000),
        ({"cpu_cores": None}, 512_000),
        ({"cpu_cores_effective": 128.0}, 512_000),
    ],
    ids=["by GPUs", "nothing known", "more than there is"],
)
def test_memory_is_never_more_than_the_host_has(told: dict[str, Any], memory_mb: int) -> None:
    """The part of the memory follows the CPUs, else the GPUs, else it is all of it."""
    (found,) = read_offers([ROW | told], OPTIONS)
    assert found.offer.memory_bytes == memory_mb * 1024**2


@pytest.mark.parametrize(
    ("place", "region"), [(", US", "US"), (None, ""), ("", ""), ("Somewhere", "Somewhere"), (17, "17")]
)
def test_places_are_countries_where_they_are(place: object, region: str) -> None:
    """A country code is taken out; anything else is kept as it is."""
    (found,) = read_offers([ROW | {"geolocation": place}], OPTIONS)
    assert found.offer.region == region


@pytest.mark.parametrize(
    "unfit",
    [
        {"rentable": False},
        {"rented": True},
        {"duration": 3_600},
        {"dph_base": None, "dph_total": None},
        {"dph_base": "cheap", "dph_total": "NaN"},
        {"num_gpus": 0},
        {"gpu_ram": None},
        {"machine_id": None},
        {"gpu_name": " "},
        {"id": True},
    ],
)
def test_rows_that_cannot_be_rented_are_left_out(unfit: dict[str, Any]) -> None:
    """One row without sense does not spoil the others, whatever the search was told to filter."""
    rows = [ROW | unfit, "no row at all", ROW | {"id": 9, "ask_contract_id": 9}]
    assert [each.offer.offer_id for each in read_offers(rows, OPTIONS)] == ["9"]


def test_an_offer_that_is_listed_twice_counts_once() -> None:
    """No two offers share an id."""
    assert len(read_offers([ROW, ROW], OPTIONS)) == 1


@pytest.mark.parametrize(
    ("ours", "wire"),
    [("T4", "Tesla T4"), ("RTX4090", "RTX 4090"), ("H100", "H100 NVL"), ("L40S", "L40S"), ("V100", "Tesla V100")],
)
def test_gpus_have_one_name_of_ours(ours: str, wire: str) -> None:
    """A GPU that is asked for by our name is found under any of its names there, and told by ours."""
    assert wire in wire_names(ours)
    assert our_name(wire) == ours
