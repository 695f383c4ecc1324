"""What RunPod rents out: from its catalog of GPUs to our offers, one for each GPU, number of GPUs and cloud."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from app.core.model.money import MICROS_PER_USD, Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from providers.runpod.options import COMMUNITY, SECURE, RunpodOptions

NAME = "runpod"
TIERS: Mapping[str, Tier] = {SECURE: Tier.CONVENTIONAL, COMMUNITY: Tier.MARKETPLACE}
_GB = 10**9
_GIB = 1024**3
_DISK_USD_PER_GB_MONTH, _MONTH_H = Decimal("0.10"), 720
_OFFER = re.compile(r"(secure|community)/([0-9]{1,4})x/(\S+)")
_FAMILY = re.compile(r"(A100|H100|H200|B200|B300|V100)\b.*")  # whose forms (SXM, PCIe, NVL) share a name
_IN_STOCK = frozenset({"LOW", "MEDIUM", "HIGH"})


def offer_id(cloud: str, count: int, gpu_id: str) -> str:
    """Names cloud, number of GPUs and type of GPU, without spaces."""
    return f"{cloud.lower()}/{count}x/{gpu_id.replace(' ', '_')}"


def split_offer_id(text: str) -> tuple[str, int, str] | None:
    """Cloud, number of GPUs and RunPod's id of the type; None for what is no id of an offer."""
    found = _OFFER.fullmatch(text)
    return None if found is None else (found[1].upper(), int(found[2]), found[3].replace("_", " "))


def availability_params(cloud: str, count: int, options: RunpodOptions) -> dict[str, str]:
    """What is asked of the catalog: the stock for pods of so many GPUs on hosts whose driver is new enough."""
    params = {"include": "AVAILABILITY", "product": "POD", "count": str(count), "cloud": cloud}
    return {**params, "minCudaVersion": cuda_version(options)} if options.cuda else params


def cuda_version(options: RunpodOptions) -> str:
    """As RunPod writes it: 12.8, 13.0."""
    return f"{options.cuda:.1f}"


def read_offers(rows: Sequence[Any], cloud: str, count: int, options: RunpodOptions) -> list[Offer]:
    """The types of GPU in stock that these options allow. Rows that make no sense are left out."""
    read = (_read(row, cloud, count, options) for row in rows if isinstance(row, Mapping))
    return [offer for offer in read if offer is not None]


def our_name(name: str) -> str:
    """The name that all providers share: without maker, form and spaces."""
    plain = name.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("Tesla ")
    return _FAMILY.sub(r"\1", plain).replace(" ", "")


def dollars(value: Any) -> Money | None:
    """A price per hour that makes sense, rounded half up to a micro-dollar; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1_000_000:
        return None
    amount = Decimal(str(value)) * MICROS_PER_USD
    return Money(int(amount.quantize(Decimal(1), rounding=ROUND_HALF_UP)))


def disk_per_hour(disk_gb: int) -> Money:
    """The container's disk, which is charged beside the GPUs while the pod runs."""
    amount = disk_gb * _DISK_USD_PER_GB_MONTH / _MONTH_H * MICROS_PER_USD
    return Money(int(amount.quantize(Decimal(1), rounding=ROUND_HALF_UP)))


def _read(row: Mapping[str, Any], cloud: str, count: int, options: RunpodOptions) -> Offer | None:
    gpu_id, name, memory_gb = row.get("id"), row.get("name"), row.get("memory")
    price = _price(row, cloud)
    if not _is_text(gpu_id) or not _is_text(name) or not _is_count(memory_gb) or price is None or "_" in str(gpu_id):
        return None
    gpu_type = our_name(str(name))
    most = _of(row, "maxCount", cloud)
    if row.get("manufacturer") != "NVIDIA" or (options.gpu_types and gpu_type not in options.gpu_types):
        return None
    if not isinstance(most, int) or count > most or not _in_stock(row, options):
        return None
    return Offer(
        provider=NAME,
        offer_id=offer_id(cloud, count, str(gpu_id)),
        tier=TIERS[cloud],
        gpu_type=gpu_type,
        gpu_count=count,
        gpu_memory_bytes=int(str(memory_gb)) * _GIB,
        cpus=options.cpus * count,
        memory_bytes=options.memory_gb * count * _GB,
        price_per_hour=Money(price.micros * count) + disk_per_hour(options.disk_gb),
        startup_ms=options.startup_ms,
        region=options.data_centers[0] if len(options.data_centers) == 1 else "",
    )


def _price(row: Mapping[str, Any], cloud: str) -> Money | None:
    price = dollars(_of(row, "price", cloud))
    return price if price is not None and price.micros > 0 else None


def _of(row: Mapping[str, Any], name: str, cloud: str) -> Any:
    """What is told for each cloud by itself."""
    told = row.get(name)
    return told.get(cloud.lower()) if isinstance(told, Mapping) else None


def _in_stock(row: Mapping[str, Any], options: RunpodOptions) -> bool:
    if not options.data_centers:
        return row.get("availability") in _IN_STOCK
    listed = row.get("dataCenters")
    places = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    return any(each.get("id") in options.data_centers and each.get("availability") in _IN_STOCK for each in places)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
