"""How one account at Vast.ai is used."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from app.core import pinned
from app.core.images.logins import RegistryLogins

DEFAULT_URL = "https://console.vast.ai"


@dataclass(frozen=True, slots=True)
class VastOptions:
    """What is looked for, and how long things may take.

    `gpu_types` are our names (A100); none: every type. `lease_h`: offers that end sooner are left out.
    `most_dollars_per_gb`: hosts that take more for a decimal gigabyte of traffic, either way, are left out.
    `bids`: bid for hosts as well, `bid_percent` of the lowest bid; these can be lost without notice.
    """

    api_key: str
    base_url: str = DEFAULT_URL
    gpu_types: tuple[str, ...] = ()
    reliability: float = 0.98
    inet_down_mbps: int = 200
    most_dollars_per_gb: Decimal = Decimal("0.05")
    cuda: float = pinned.CUDA
    verified: bool = True
    disk_gb: int = 64
    lease_h: float = 24.0
    bids: bool = False
    bid_percent: int = 120
    search_limit: int = 512
    startup_ms: int = 36_040
    startup_deadline_ms: int = 600_000
    create_grace_ms: int = 30_000
    timeout_s: float = 30.0
    logins: RegistryLogins = field(default_factory=RegistryLogins)
