"""What Lambda rents out: from its instance types to our offers, one for each region that has some."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.core.model.money import MICROS_PER_USD, Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from providers.lambda_cloud.options import LambdaOptions

NAME = "lambda"
GIB = 1024**3
_MICROS_PER_CENT = MICROS_PER_USD // 100
_TYPE = re.compile(r"^gpu_(\d+)x_([a-z0-9]+)")
_MEMORY = re.compile(r"(\d+) ?GB")
# Where the description does not tell. The name may: gpu_8x_a100_80gb_sxm4.
_MEMORY_GIB = {"A10": 24, "A100": 40, "A6000": 48, "B200": 180, "GH200": 96, "H100": 80, "RTX6000": 24, "V100": 16}
# Machines with eight GPUs start later: 15 minutes for A100s, a bit over 20 for H100s and later.
_SLOW_GPUS = frozenset({"H100", "H200", "GH200", "B200"})
_EIGHT_GPUS, _EIGHT_SLOW_GPUS = 900_000 / 255_590, 1_250_000 / 255_590


def offer_id(type_name: str, region: str) -> str:
    """Names the pair of instance type and region."""
    return f"{type_name}@{region}"


def split_offer_id(text: str) -> tuple[str, str]:
    """Instance type and region; the region is empty for what is no id of an offer."""
    type_name, _, region = text.partition("@")
    return type_name, region


def read_offers(types: Mapping[str, Any], options: LambdaOptions) -> list[Offer]:
    """Every pair of type and region that has capacity now, but for types without a GPU or that cannot be read."""
    offers = []
    for name, entry in sorted(types.items()):
        described = _described(name, entry)
        if described is None:
            continue
        gpu_type, gpu_count, memory_bytes, specs, price = described
        offers += [
            Offer(
                provider=NAME,
                offer_id=offer_id(name, region),
                tier=Tier.CONVENTIONAL,
                gpu_type=gpu_type,
                gpu_count=gpu_count,
                gpu_memory_bytes=memory_bytes,
                cpus=specs["vcpus"],
                memory_bytes=specs["memory_gib"] * GIB,
                price_per_hour=price,
                startup_ms=startup_ms(gpu_type, gpu_count, options.startup_ms),
                region=region,
            )
            for region in _regions(entry)
            if not options.regions or region in options.regions
        ]
    return offers


def price_of(instance_type: Any) -> Money | None:
    """What the whole machine costs per hour; None where that is not said."""
    cents = instance_type.get("price_cents_per_hour") if isinstance(instance_type, dict) else None
    return Money(cents * _MICROS_PER_CENT) if isinstance(cents, int) and cents > 0 else None


def startup_ms(gpu_type: str, gpu_count: int, one_gpu_ms: int) -> int:
    """The mean start-up time: that of one GPU, growing to the published figures for eight."""
    factor = _EIGHT_SLOW_GPUS if gpu_type in _SLOW_GPUS else _EIGHT_GPUS
    return round(one_gpu_ms * (1 + (factor - 1) * min(gpu_count - 1, 7) / 7))


def _described(name: str, entry: Any) -> tuple[str, int, int, dict[str, int], Money] | None:
    """GPU type, count, memory of each, specs and price."""
    found = _TYPE.match(name)
    instance_type = entry.get("instance_type") if isinstance(entry, dict) else None
    price = price_of(instance_type)
    if found is None or not isinstance(instance_type, dict) or price is None:
        return None
    specs = instance_type.get("specs")
    if not isinstance(specs, dict) or not all(_is_count(specs.get(each)) for each in ("vcpus", "memory_gib")):
        return None
    gpu_type, gpus = found.group(2).upper(), specs.get("gpus", int(found.group(1)))
    memory_gib = _gpu_memory_gib(name, gpu_type, instance_type)
    if not _is_count(gpus) or memory_gib is None:
        return None
    return gpu_type, gpus, memory_gib * GIB, specs, price


def _gpu_memory_gib(name: str, gpu_type: str, instance_type: Mapping[str, Any]) -> int | None:
    for text in (instance_type.get("gpu_description"), instance_type.get("description"), name.upper()):
        found = _MEMORY.search(text) if isinstance(text, str) else None
        if found:
            return int(found.group(1))
    return _MEMORY_GIB.get(gpu_type)


def _regions(entry: Mapping[str, Any]) -> list[str]:
    listed = entry.get("regions_with_capacity_available")
    names = [each.get("name") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return sorted({name for name in names if isinstance(name, str) and name})


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
