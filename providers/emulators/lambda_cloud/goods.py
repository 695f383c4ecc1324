"""What the emulated Lambda rents out: instance types with their regions, prices, supply and start-up times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from providers.emulators.market import Good
from providers.emulators.prices import PUBLISHED, micros

REGIONS: Mapping[str, str] = {
    "us-west-1": "California, USA",
    "us-west-2": "Arizona, USA",
    "us-west-3": "Utah, USA",
    "us-east-1": "Virginia, USA",
    "us-east-3": "Washington DC, USA",
    "us-south-1": "Texas, USA",
    "us-midwest-1": "Illinois, USA",
    "europe-central-1": "Germany",
    "asia-northeast-1": "Osaka, Japan",
}
MICROS_PER_CENT = 10_000
ONE_GPU_MS, EIGHT_A100_MS, EIGHT_H100_MS = 255_590, 900_000, 1_250_000
LISTING_LAG_MS = 20_000
_WEST, _EAST = ("us-west-1", "us-west-2", "us-west-3"), ("us-east-1", "us-east-3")


@dataclass(frozen=True, slots=True)
class InstanceType:
    """`description` is of one GPU, as Lambda writes it. `boot_ms` is the mean at full length."""

    name: str
    gpu: str
    gpus: int
    description: str
    vcpus: int
    memory_gib: int
    storage_gib: int
    regions: tuple[str, ...]
    supply: int
    empty_ppm: int
    boot_ms: int = ONE_GPU_MS

    @property
    def price_micros(self) -> int:
        """Of the whole machine, per hour."""
        usd = PUBLISHED[self.gpu].lambda_cloud
        if usd is None:
            raise ValueError(f"{self.gpu} is not rented out here")
        return micros(usd) * self.gpus

    def shown_gpus(self, wrong: str = "") -> dict[str, Any]:
        """What nvidia-smi shows there, as the fields of `EmulatedGpus`."""
        good, memory_mib = _CARDS[self.description]
        return {"good": good, "count": self.gpus, "memory_mib": memory_mib, "wrong": wrong}

    def wire(self) -> dict[str, Any]:
        """The `instance_type` object."""
        return {
            "name": self.name,
            "description": f"{self.gpus}x {self.description}",
            "gpu_description": self.description,
            "price_cents_per_hour": self.price_micros // MICROS_PER_CENT,
            "specs": {
                "vcpus": self.vcpus,
                "memory_gib": self.memory_gib,
                "storage_gib": self.storage_gib,
                "gpus": self.gpus,
            },
        }


# What a description means: the card as a market calls it, and its memory in MiB as nvidia-smi tells it.
_CARDS: Mapping[str, tuple[str, int]] = {
    "A10 (24 GB PCIe)": ("A10", 23_028),
    "A100 (40 GB PCIe)": ("A100 PCIE", 40_960),
    "A100 (40 GB SXM4)": ("A100 SXM4", 40_960),
    "H100 (80 GB PCIe)": ("H100 PCIE", 81_559),
    "H100 (80 GB SXM5)": ("H100 SXM", 81_559),
    "V100 (16 GB)": ("Tesla V100", 16_384),
}
_A10, _A100, _A100_SXM = "A10 (24 GB PCIe)", "A100 (40 GB PCIe)", "A100 (40 GB SXM4)"
TYPES: Mapping[str, InstanceType] = {
    each.name: each
    for each in (
        InstanceType("gpu_1x_a10", "A10", 1, _A10, 30, 200, 1_400, (*_WEST, *_EAST), 12, 20_000),
        InstanceType("gpu_1x_a100", "A100", 1, _A100, 30, 200, 512, ("us-east-1", "us-west-2"), 6, 150_000),
        InstanceType("gpu_1x_a100_sxm4", "A100", 1, _A100_SXM, 30, 200, 512, tuple(REGIONS), 8, 100_000),
        InstanceType("gpu_2x_a100", "A100", 2, _A100, 60, 400, 1_024, ("us-east-1",), 3, 250_000, 350_000),
        InstanceType("gpu_4x_a100", "A100", 4, _A100, 120, 900, 1_024, ("us-east-1",), 2, 300_000, 530_000),
        InstanceType("gpu_8x_a100", "A100", 8, _A100_SXM, 124, 1_800, 6_144, _WEST, 2, 400_000, EIGHT_A100_MS),
        InstanceType("gpu_1x_h100_pcie", "H100", 1, "H100 (80 GB PCIe)", 26, 225, 1_024, ("us-west-3",), 6, 200_000),
        InstanceType(
            "gpu_8x_h100_sxm5", "H100", 8, "H100 (80 GB SXM5)", 208, 1_800, 24_780, ("us-south-1",), 2, 500_000,
            EIGHT_H100_MS,
        ),
        InstanceType("gpu_8x_v100", "V100", 8, "V100 (16 GB)", 92, 448, 5_939, ("us-south-1",), 4, 100_000, 600_000),
    )
}  # fmt: skip


def goods() -> list[Good]:
    """The types for the market: prices hold still, supply flaps, and what is scarce is gone for hours."""
    return [
        Good(
            name=each.name,
            lowest_micros=each.price_micros,
            median_micros=each.price_micros,
            highest_micros=each.price_micros,
            supply=each.supply,
            places=each.regions,
            supply_swing=0.8,
            empty_ppm=each.empty_ppm,
        )
        for each in TYPES.values()
    ]


def region(name: str) -> dict[str, str]:
    """A `region` object."""
    return {"name": name, "description": REGIONS[name]}
