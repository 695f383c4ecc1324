"""An offer: something a provider would rent now, at a price."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from app.core.model.money import Money
from app.core.model.node import Tier

Architecture = Literal["x86_64", "arm64"]
X86_64: Architecture = "x86_64"
ARM64: Architecture = "arm64"
_WITH_ARM = ("gh200", "gb200", "gb300", "gb10")  # superchips: the GPU and an Arm CPU in one


@lru_cache(maxsize=1024)
def cpu_architecture(gpu_type: str) -> Architecture:
    """Of the machines that have such GPUs. No company tells it of an offer in its own words; the GPU does."""
    plain = "".join(letter for letter in gpu_type.casefold() if letter.isalnum())
    return ARM64 if plain.removeprefix("nvidia").startswith(_WITH_ARM) else X86_64


@dataclass(frozen=True, slots=True)
class Offer:
    """`price_per_hour` is for the whole offer (all its GPUs), as it will be billed. `disk_bytes` and `download_mbps`
    (to the internet) are what its company promises; 0: nothing. `traffic_micros_per_gb`: of a decimal gigabyte to or
    from the internet, whichever is dearer; 0: it costs nothing beside the hours."""

    provider: str
    offer_id: str
    tier: Tier
    gpu_type: str
    gpu_count: int
    gpu_memory_bytes: int  # per GPU
    cpus: int
    memory_bytes: int
    price_per_hour: Money
    startup_ms: int  # expected time from request to ready
    region: str = ""
    host: str = ""
    disk_bytes: int = 0
    download_mbps: int = 0
    traffic_micros_per_gb: int = 0
    mean_life_ms: int = 0  # of such machines until they fail, as far as is learned; 0: as good as none has failed
    arrival_ms: int = 0  # until the first job of such a machine trains, once it is up, as far as is learned
    arrival_micros: int = 0  # and what that costs beside the hours: bytes
    shared_gpus: int = 0  # that are free on its host, of which each of the host's offers takes its own; 0: not shared
    projects: tuple[str, ...] = ()  # that may have it; empty: all
    spot_only: bool = False  # whoever is there has to go when somebody else wants it: lent, kept, or bid for

    @property
    def key(self) -> str:
        """Names the offer across providers."""
        return f"{self.provider}/{self.offer_id}"

    @property
    def interruptible(self) -> bool:
        """Whether its company takes the machine back without a word as soon as somebody pays more: a bid. GPUs of one's
        own that are lent are asked for, and whoever is there may save."""
        return self.spot_only and self.tier is not Tier.OWN

    @property
    def cpu_architecture(self) -> Architecture:
        return cpu_architecture(self.gpu_type)
