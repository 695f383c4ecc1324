"""What is asked of Vast.ai's search, and what is made of its offers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from providers.vast.bids import PricedOffer, offer_id_of
from providers.vast.numbers import Row, disk_per_hour, dollars, number, price_per_hour, text, whole
from providers.vast.options import VastOptions

NAME = "vast"
_MIB = 1024**2
_GB = 10**9
_MOST_MBPS = 10**6
_CENT_PERCENT = Decimal(100)
# Our name of a GPU, and those it goes by at Vast.ai. A name that is not here is its own.
_WIRE_NAMES: Mapping[str, tuple[str, ...]] = {
    "A100": ("A100 SXM4", "A100 PCIE", "A100X"),
    "H100": ("H100 SXM", "H100 PCIE", "H100 NVL"),
    "H200": ("H200", "H200 NVL"),
    "T4": ("Tesla T4",),
    "V100": ("Tesla V100",),
}
_OUR_NAMES = {wire: ours for ours, names in _WIRE_NAMES.items() for wire in names}
_COUNTRY = re.compile(r"(?:^|,)\s*([A-Z]{2})$")


def search_body(options: VastOptions, ask: str | None = None, *, bids: bool = False) -> dict[str, Any]:
    """The filters at the top level, as the API takes them; one search is for one way to rent. With `ask`: that offer,
    whatever it is like by now."""
    body: dict[str, Any] = {"rentable": {"eq": True}, "rented": {"eq": False}, "external": {"eq": False}}
    if ask is not None:
        body["id"] = {"eq": int(ask)}
    else:
        body |= {
            "reliability2": {"gte": options.reliability},
            "inet_down": {"gte": options.inet_down_mbps},
            "inet_down_cost": {"lte": float(options.most_dollars_per_gb)},
            "inet_up_cost": {"lte": float(options.most_dollars_per_gb)},
            "cuda_max_good": {"gte": options.cuda},
            "disk_space": {"gte": options.disk_gb},
            "duration": {"gte": _lease_s(options)},
        }
        if options.verified:
            body["verified"] = {"eq": True}
        if options.gpu_types:
            body["gpu_name"] = {"in": sorted(name for ours in options.gpu_types for name in wire_names(ours))}
    body["order"] = [["dph_total", "asc"]]
    body["type"] = "bid" if bids else "on-demand"
    body["limit"] = options.search_limit
    body["allocated_storage"] = options.disk_gb
    return body


def read_offers(rows: Sequence[Any], options: VastOptions, *, bids: bool = False) -> list[PricedOffer]:
    """The rows that can be rented under these options, each offer once. Rows that make no sense are left out. `bids`:
    they are of a search for bids, and are bid for."""
    found: dict[str, PricedOffer] = {}
    for row in rows:
        read = _read(row, options, bids=bids) if isinstance(row, Mapping) else None
        if read is not None:
            found.setdefault(read.offer.offer_id, read)
    return list(found.values())


def wire_names(gpu_type: str) -> tuple[str, ...]:
    """What a GPU type of ours may be called at Vast.ai: "RTX4090" there is "RTX 4090"."""
    if gpu_type in _WIRE_NAMES:
        return _WIRE_NAMES[gpu_type]
    return (re.sub(r"^(RTX|GTX|Quadro)(?=\S)", r"\1 ", gpu_type),)


def our_name(gpu_name: str) -> str:
    """The name that all providers share: without maker, form and spaces."""
    return _OUR_NAMES.get(gpu_name) or gpu_name.removeprefix("Tesla ").replace(" ", "")


def _read(row: Row, options: VastOptions, *, bids: bool) -> PricedOffer | None:
    ask, machine = text(row, "id") or text(row, "ask_contract_id"), text(row, "machine_id")
    bid = bid_of(row, options) if bids else None
    price = _price(row, options, bid, bids=bids)
    gpus, gpu_ram_mb = whole(row, "num_gpus"), whole(row, "gpu_ram")
    if not ask or not machine or price is None or not gpus or gpus < 1 or not gpu_ram_mb or gpu_ram_mb < 1:
        return None
    if row.get("rentable") is False or row.get("rented") is True or not text(row, "gpu_name"):
        return None
    duration_s = number(row, "duration")
    if duration_s is not None and duration_s < _lease_s(options):
        return None
    traffic = _traffic_per_gb(row)
    if traffic is None or traffic > options.most_dollars_per_gb:
        return None
    offer = Offer(
        provider=NAME,
        offer_id=offer_id_of(ask, bids=bids),
        tier=Tier.MARKETPLACE,
        gpu_type=our_name(text(row, "gpu_name")),
        gpu_count=gpus,
        gpu_memory_bytes=gpu_ram_mb * _MIB,
        cpus=_cpus(row),
        memory_bytes=_memory_bytes(row),
        price_per_hour=price,
        startup_ms=options.startup_ms,
        region=_region(row),
        host=machine,
        disk_bytes=options.disk_gb * _GB,
        download_mbps=max(0, min(whole(row, "inet_down") or 0, _MOST_MBPS)),
        traffic_micros_per_gb=dollars(traffic).micros,
        spot_only=bids,
    )
    return PricedOffer(offer, machine, bid)


def bid_of(row: Row, options: VastOptions) -> Decimal | None:
    """What to bid for the offer in dollars an hour, to a tenth of a cent; None where no bid is told that could win."""
    lowest = number(row, "min_bid")
    if lowest is None or lowest <= 0:
        return None
    return (lowest * options.bid_percent / _CENT_PERCENT).quantize(Decimal("0.001"), rounding="ROUND_UP")


def _price(row: Row, options: VastOptions, bid: Decimal | None, *, bids: bool) -> Money | None:
    if bids:
        price = None if bid is None else bid + disk_per_hour(row, options.disk_gb)
    else:
        price = price_per_hour(row, options.disk_gb)
    return None if price is None or price <= 0 else dollars(price)


def _traffic_per_gb(row: Row) -> Decimal | None:
    """Dollars for a gigabyte, in the dearer direction; a direction without a price costs nothing, as far as anybody
    knows. None where a price is told that is none: nobody knows what the bill would be."""
    told = [number(row, name) for name in ("inet_down_cost", "inet_up_cost") if row.get(name) is not None]
    prices = [price for price in told if price is not None and price >= 0]
    return max(prices, default=Decimal(0)) if len(prices) == len(told) else None


def _cpus(row: Row) -> int:
    return max(1, whole(row, "cpu_cores_effective") or whole(row, "cpu_cores") or 1)


def _memory_bytes(row: Row) -> int:
    """The offer's part of the host's memory: by CPUs, or by GPUs where the host's CPUs are not told."""
    whole_mb = number(row, "cpu_ram") or Decimal(1)
    effective, cores = number(row, "cpu_cores_effective"), number(row, "cpu_cores")
    share = effective / cores if effective and cores else number(row, "gpu_frac")
    return max(1, int(whole_mb * min(share or Decimal(1), Decimal(1)))) * _MIB


def _region(row: Row) -> str:
    """The country where one is named ("Sweden, SE", ", US"), else the text as it is."""
    place = text(row, "geolocation")
    country = _COUNTRY.search(place)
    return country.group(1) if country else place


def _lease_s(options: VastOptions) -> int:
    return round(options.lease_h * 3600)
