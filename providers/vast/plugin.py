"""Vast.ai as the service finds it: its settings and how it is built."""

from __future__ import annotations

import logging
from decimal import Decimal

from pydantic import Field, SecretStr

from app.core import pinned
from app.core.reach import is_public
from app.ports.plugin import ProviderPlugin, ProviderSettings, ProviderTools
from providers.vast.adapter import VastProvider
from providers.vast.options import VastOptions

_log = logging.getLogger(__name__)


class VastSettings(ProviderSettings):
    """One account at Vast.ai."""

    api_key: SecretStr | None = Field(None, description="Unset: the provider vast is absent")
    url: str = "https://console.vast.ai"
    gpu_types: list[str] = Field(
        ["A10", "A100", "H100", "L4", "L40S", "RTX4090", "T4"],
        description="GPUs to look for there, as JSON; an empty list: every type, the cheapest first",
    )
    reliability: float = Field(0.98, ge=0, le=1, description="Least reliability of a host, as Vast.ai measures it")
    inet_down_mbps: int = Field(200, ge=0, description="Least bandwidth of a host to the internet")
    most_dollars_per_gb: Decimal = Field(
        Decimal("0.05"),
        ge=0,
        le=100,
        description="Leave out hosts that take more for a gigabyte of traffic: models and checkpoints travel",
    )
    cuda: float = Field(
        pinned.CUDA, ge=0, description="Oldest CUDA that a host's driver may stop at; the tested torch needs 13.0"
    )
    verified: bool = Field(True, description="Only hosts that Vast.ai has verified")
    lease_h: float = Field(24.0, ge=0, description="Leave out hosts whose lease ends sooner")
    disk_gb: int = Field(64, ge=8, description="Disk of a machine; it is paid for by the second, also when stopped")
    bids: bool = Field(
        False, description="Bid for hosts as well, for spot jobs alone: half the price, and lost without notice"
    )
    interruptible: bool = Field(
        False, description="What ALLPASS_VAST_BIDS was called when bids were for all jobs; true now means that"
    )
    bid_percent: int = Field(120, ge=100, le=1000, description="What to bid, in percent of a host's lowest bid")
    search_limit: int = Field(
        512,
        ge=1,
        le=5000,
        description="How many offers a search may give; where there are more, GPUs are searched for type by type",
    )
    startup_s: float = Field(36.04, gt=0, description="How long a start takes, for weighing offers")
    startup_deadline_s: float = Field(600.0, gt=0, description="A machine that has not come up by then is given up")
    create_grace_s: float = Field(30.0, gt=0, description="So long a new machine may be missing from the listing")

    @property
    def is_configured(self) -> bool:
        return bool(self.api_key)

    @property
    def is_real(self) -> bool:
        return is_public(self.url)

    @property
    def promised_cuda(self) -> float:
        return self.cuda


def _build(settings: VastSettings, tools: ProviderTools) -> VastProvider:
    if settings.interruptible:
        _log.warning(
            "ALLPASS_VAST_INTERRUPTIBLE means ALLPASS_VAST_BIDS now: bids are for spot jobs alone, and all other jobs "
            "rent on demand, at the full price. Set ALLPASS_VAST_BIDS=true instead; for bids as before, make jobs spot "
            "(allpass project set NAME --default-class spot)"
        )
    return VastProvider(_options(settings, tools), clock=tools.clock, pace=tools.pace, failures=tools.host_failures)


def _options(settings: VastSettings, tools: ProviderTools) -> VastOptions:
    assert settings.api_key is not None
    return VastOptions(
        api_key=settings.api_key.get_secret_value(),
        base_url=settings.url,
        gpu_types=tuple(settings.gpu_types),
        reliability=settings.reliability,
        inet_down_mbps=settings.inet_down_mbps,
        most_dollars_per_gb=settings.most_dollars_per_gb,
        cuda=settings.cuda,
        verified=settings.verified,
        lease_h=settings.lease_h,
        disk_gb=settings.disk_gb,
        bids=settings.bids or settings.interruptible,
        bid_percent=settings.bid_percent,
        search_limit=settings.search_limit,
        startup_ms=round(settings.startup_s * 1000),
        startup_deadline_ms=round(settings.startup_deadline_s * 1000),
        create_grace_ms=round(settings.create_grace_s * 1000),
        timeout_s=tools.operation_timeout_s / 3,  # a create waits for its turn, creates, and looks
        logins=tools.logins,
    )


PLUGIN = ProviderPlugin(VastSettings, _build)
