"""An offer: something a provider would rent now, at a price."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.model.money import Money
from app.core.model.node import Tier


@dataclass(frozen=True, slots=True)
class Offer:
    """`price_per_hour` is for the whole offer (all its GPUs), as it will be billed."""

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

    @property
    def key(self) -> str:
        """Names the offer across providers."""
        return f"{self.provider}/{self.offer_id}"
