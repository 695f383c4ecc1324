"""What the local cloud rents out: three classes, their prices, billing and start-up times.

Start-up times and prices are those of the Allpass paper, Tables 2 and 3 (start-up: mean and standard deviation of 20
starts on an A100; marketplace prices: median with lowest and highest over one month). One class behaves like Modal,
one like Vast.ai, one like Lambda.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

GIB = 1024**3
MICROS_PER_USD = 1_000_000
_PRICE_STEP_MICROS = 100  # hosts name prices to a hundredth of a cent


class RentalClass(StrEnum):
    """The values are the names of the tiers on the wire."""

    SERVERLESS = "serverless"
    MARKETPLACE = "marketplace"
    CONVENTIONAL = "conventional"


@dataclass(frozen=True, slots=True)
class ClassRules:
    """How a class starts and bills. Start-up is from the request to the moment code runs, at full length (speed 1)."""

    startup_mean_ms: int
    startup_sd_ms: int
    startup_deadline_ms: int
    billing_unit_ms: int
    billed_from_request: bool
    dies_with_run: bool
    preemptible: bool


RULES = {
    RentalClass.SERVERLESS: ClassRules(3_880, 1_840, 60_000, 1_000, True, True, False),
    RentalClass.MARKETPLACE: ClassRules(36_040, 7_350, 600_000, 1_000, False, False, True),
    RentalClass.CONVENTIONAL: ClassRules(255_590, 26_260, 1_800_000, 60_000, False, False, False),
}
CREATE_GRACE_MS = 30_000
# However fast the cloud is set, its machines are real processes: these do not shrink with the speed factor.
LEAST_DEADLINE_MS = 30_000
LEAST_GRACE_MS = 5_000


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU type with its prices in dollars per GPU-hour; None where a class does not rent it out."""

    name: str
    memory_bytes: int
    serverless: str | None
    marketplace: tuple[str, str, str] | None  # lowest, median, highest
    conventional: str | None
    marketplace_hosts: int
    counts: tuple[int, ...] = (1,)


GPUS = (
    GpuModel("T4", 16 * GIB, "0.59", (".14", ".14", ".15"), None, 6),
    GpuModel("L4", 24 * GIB, "0.80", (".38", ".38", ".39"), None, 6),
    GpuModel("A10", 24 * GIB, "1.10", (".25", ".26", ".26"), "0.75", 6),
    GpuModel("L40S", 48 * GIB, "1.95", (".60", ".68", ".72"), None, 6, (1, 2, 4)),
    GpuModel("RTX4090", 24 * GIB, None, (".17", ".42", ".92"), None, 16, (1, 2, 4)),
    GpuModel("A100", 40 * GIB, "2.10", (".38", "1.08", "1.66"), "1.29", 12, (1, 2, 4, 8)),
    GpuModel("H100", 80 * GIB, "3.96", ("1.53", "2.05", "2.62"), "2.49", 8, (1, 2, 4, 8)),
)
_HOST_SHAPE = {  # CPUs and memory that come with each GPU
    RentalClass.SERVERLESS: (8, 64 * GIB),
    RentalClass.MARKETPLACE: (12, 64 * GIB),
    RentalClass.CONVENTIONAL: (30, 200 * GIB),
}
_REGION = {
    RentalClass.SERVERLESS: "local-serverless",
    RentalClass.MARKETPLACE: "local-market",
    RentalClass.CONVENTIONAL: "local-east-1",
}


@dataclass(frozen=True, slots=True)
class ListedOffer:
    """`price_micros_per_hour` is for all its GPUs. A `single` offer is one host: it is gone while it is rented."""

    offer_id: str
    rental_class: RentalClass
    gpu_type: str
    gpu_count: int
    gpu_memory_bytes: int
    cpus: int
    memory_bytes: int
    price_micros_per_hour: int
    region: str
    host: str
    single: bool


class LocalCatalogue:
    """The catalogue. The same seed lists the same offers at the same prices, and draws the same start-up times."""

    def __init__(self, seed: int, speed: float) -> None:
        """`speed` scales start-up times: 1 as in the paper, 0 none at all."""
        if not (math.isfinite(speed) and speed >= 0):
            raise ValueError(f"speed is {speed}; it must be 0 or greater, e.g. 0.1 for a tenth of the real delays")
        self.seed = seed
        self.speed = speed
        self.offers = {offer.offer_id: offer for gpu in GPUS for offer in _offers_of(gpu, seed)}

    def startup_ms(self, rental_class: RentalClass, machine_number: int) -> int:
        """The start-up time of the machine with this number, drawn from the class's lognormal and scaled."""
        rules = RULES[rental_class]
        chance = random.Random(f"{self.seed}/startup/{machine_number}")  # noqa: S311 - a model, not a secret
        full_ms = draw_lognormal(chance, rules.startup_mean_ms, rules.startup_sd_ms)
        return round(full_ms * self.speed)

    def expected_startup_ms(self, rental_class: RentalClass) -> int:
        """The mean of `startup_ms`."""
        return round(RULES[rental_class].startup_mean_ms * self.speed)


def draw_lognormal(chance: random.Random, mean: float, sd: float) -> float:
    """A draw from the lognormal distribution whose own mean and standard deviation these are."""
    variance = math.log(1 + (sd / mean) ** 2)
    return chance.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))


def _offers_of(gpu: GpuModel, seed: int) -> list[ListedOffer]:
    listed: list[ListedOffer] = []
    for rental_class, price in (
        (RentalClass.SERVERLESS, gpu.serverless),
        (RentalClass.CONVENTIONAL, gpu.conventional),
    ):
        if price is not None:
            listed.extend(_offer(gpu, rental_class, count, _micros(price)) for count in gpu.counts)
    if gpu.marketplace is not None:
        listed.extend(_hosts(gpu, gpu.marketplace, seed))
    return listed


def _hosts(gpu: GpuModel, prices: tuple[str, str, str], seed: int) -> list[ListedOffer]:
    """Single hosts, half of them priced below the median and half above it; two in three have one GPU."""
    chance = random.Random(f"{seed}/market/{gpu.name}")  # noqa: S311 - a model, not a secret
    lowest, median, highest = (_micros(price) for price in prices)
    hosts = []
    for number in range(gpu.marketplace_hosts):
        between = (lowest, median) if number % 2 == 0 else (median, highest)
        price = round(chance.uniform(*between) / _PRICE_STEP_MICROS) * _PRICE_STEP_MICROS
        several = number % 3 == 2
        count = chance.choice(gpu.counts[1:]) if several and gpu.counts[1:] else 1
        hosts.append(_offer(gpu, RentalClass.MARKETPLACE, count, price, host=f"host-{gpu.name.lower()}-{number:02d}"))
    return hosts


def _offer(gpu: GpuModel, rental_class: RentalClass, count: int, gpu_price: int, host: str = "") -> ListedOffer:
    cpus, memory_bytes = _HOST_SHAPE[rental_class]
    name = f"{rental_class}-{gpu.name.lower()}-x{count}"
    return ListedOffer(
        offer_id=f"{name}-{host.rpartition('-')[2]}" if host else name,
        rental_class=rental_class,
        gpu_type=gpu.name,
        gpu_count=count,
        gpu_memory_bytes=gpu.memory_bytes,
        cpus=cpus * count,
        memory_bytes=memory_bytes * count,
        price_micros_per_hour=gpu_price * count,
        region=_REGION[rental_class],
        host=host,
        single=bool(host),
    )


def _micros(usd: str) -> int:
    return int(Decimal(usd) * MICROS_PER_USD)
