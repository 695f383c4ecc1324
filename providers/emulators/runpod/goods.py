"""What the emulated RunPod rents out: types of GPU with their prices, stock and data centers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from providers.emulators.market import Good
from providers.emulators.prices import micros

SECURE, COMMUNITY = "SECURE", "COMMUNITY"
DATA_CENTERS: Mapping[str, str] = {"US-TX-3": "US Texas 3", "US-KS-2": "US Kansas 2", "EU-RO-1": "EU Romania 1"}
LISTING_LAG_MS = 20_000
DISK_MICROS_PER_GB_MONTH, MONTH_H = 100_000, 720
MOST_GPUS: Mapping[str, int] = {SECURE: 8, COMMUNITY: 4}
_CUDA_VERSIONS = ("12.4", "12.8", "13.0")


@dataclass(frozen=True, slots=True)
class GpuType:
    """`id` is what pods are ordered by, `name` what people read; prices per GPU and hour. None: not in that cloud.

    `host_gb`, `host_vcpus`: what a host has for each GPU. `good`: the card as `nvidia_smi` knows it.
    """

    id: str
    name: str
    good: str
    memory_gb: int
    secure: str | None
    community: str | None
    supply: int
    empty_ppm: int
    host_gb: int = 62
    host_vcpus: int = 12

    def usd(self, cloud: str) -> str | None:
        return self.secure if cloud == SECURE else self.community


# Prices: community and secure as trackers told them in 2026, where they told both; those of the A40 and the A6000 are
# picked.
TYPES: Mapping[str, GpuType] = {
    each.id: each
    for each in (
        GpuType("NVIDIA L4", "L4", "L4", 24, "0.44", "0.39", 12, 50_000),
        GpuType("NVIDIA GeForce RTX 4090", "RTX 4090", "RTX 4090", 24, "0.60", "0.34", 30, 20_000),
        GpuType("NVIDIA RTX A6000", "RTX A6000", "RTX A6000", 48, "0.49", "0.33", 20, 20_000),
        GpuType("NVIDIA A40", "A40", "A40", 48, "0.40", None, 16, 20_000),
        GpuType("NVIDIA L40S", "L40S", "L40S", 48, "0.99", "0.79", 10, 100_000),
        GpuType("NVIDIA A100 80GB PCIe", "A100 PCIe", "A100 PCIE", 80, "1.39", "1.19", 12, 100_000, 117),
        GpuType("NVIDIA A100-SXM4-80GB", "A100 SXM", "A100 SXM4", 80, "1.59", "1.39", 12, 150_000, 117),
        GpuType("NVIDIA H100 PCIe", "H100 PCIe", "H100 PCIE", 80, "2.89", "1.99", 8, 150_000, 176),
        GpuType("NVIDIA H100 80GB HBM3", "H100 SXM", "H100 SXM", 80, "3.49", "2.69", 8, 250_000, 176),
    )
}


def good_name(cloud: str, gpu_id: str) -> str:
    """What the market knows it by."""
    return f"{cloud.lower()}/{gpu_id}"


def goods() -> list[Good]:
    """For the market: prices hold still, stock comes and goes by the GPU."""
    return [
        Good(
            name=good_name(cloud, each.id),
            lowest_micros=micros(usd),
            median_micros=micros(usd),
            highest_micros=micros(usd),
            supply=each.supply,
            places=tuple(DATA_CENTERS),
            supply_swing=0.8,
            empty_ppm=each.empty_ppm,
        )
        for each in TYPES.values()
        for cloud in (SECURE, COMMUNITY)
        if (usd := each.usd(cloud)) is not None
    ]


def disk_micros_per_hour(disk_gb: int) -> int:
    """A container's disk, half up."""
    return (2 * disk_gb * DISK_MICROS_PER_GB_MONTH + MONTH_H) // (2 * MONTH_H)


def level(free: int) -> str:
    """The stock in the catalog's words."""
    if free <= 0:
        return "NONE"
    return "LOW" if free < 4 else "MEDIUM" if free < 10 else "HIGH"


def gpu_json(each: GpuType, prices_micros: Mapping[str, int]) -> dict[str, Any]:
    """The `GpuType` object, without its stock."""
    return {
        "id": each.id,
        "name": each.name,
        "pool": None,
        "manufacturer": "NVIDIA",
        "memory": each.memory_gb,
        "secure": each.secure is not None,
        "community": each.community is not None,
        "price": {cloud.lower(): prices_micros.get(cloud, 0) / 1_000_000 for cloud in (SECURE, COMMUNITY)},
        "maxCount": {
            cloud.lower(): MOST_GPUS[cloud] if each.usd(cloud) is not None else 0 for cloud in (SECURE, COMMUNITY)
        },
    }


def cuda_versions(*, in_stock: bool) -> list[dict[str, Any]]:
    return [{"version": version, "available": in_stock} for version in _CUDA_VERSIONS]


def runs_cuda(least: str) -> bool:
    """Whether hosts have a driver for this version: compared number by number."""
    return _numbers(least) <= max(_numbers(version) for version in _CUDA_VERSIONS)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
