"""RunPod as the service finds it: its settings and how it is built."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, SecretStr

from app.core import pinned
from app.core.reach import is_public
from app.ports.plugin import ProviderPlugin, ProviderSettings, ProviderTools
from providers.runpod.adapter import RunpodProvider
from providers.runpod.options import DEFAULT_URL, SECURE, RunpodOptions


class RunpodSettings(ProviderSettings):
    """One account at RunPod."""

    api_key: SecretStr | None = Field(None, description="Unset: the provider runpod is absent")
    url: str = DEFAULT_URL
    clouds: list[Literal["SECURE", "COMMUNITY"]] = Field(
        [SECURE],
        min_length=1,
        max_length=2,
        description="Where to rent, as JSON: vetted data centers (SECURE), machines of others (COMMUNITY), or both",
    )
    gpu_types: list[str] = Field(default_factory=list, description='Only these, as JSON: ["A100", "H100"]; empty: all')
    gpu_counts: list[PositiveInt] = Field(
        [1, 2, 4, 8], min_length=1, max_length=8, description="Numbers of GPUs to look for; each takes a call a listing"
    )
    data_centers: list[str] = Field(default_factory=list, description='Only there, as JSON: ["US-TX-3"]; empty: all')
    cuda: float = Field(
        pinned.CUDA, ge=0, description="Oldest CUDA that a host's driver may stop at; the tested torch needs 13.0"
    )
    cpus: int = Field(4, ge=1, description="CPUs that a host has to have for each GPU")
    memory_gb: int = Field(24, ge=1, description="Memory that a host has to have for each GPU")
    disk_gb: int = Field(64, ge=8, description="Disk of a pod; it is paid for while the pod runs")
    startup_s: float = Field(42.0, gt=0, description="How long a start takes, for weighing offers")
    startup_deadline_s: float = Field(1200.0, gt=0, description="A pod that has not called home by then is given up")
    create_grace_s: float = Field(60.0, gt=0, description="So long a new pod may be missing from the listing")
    call_every_s: float = Field(1.25, ge=0, description="Least time between two calls, for all processes")

    @property
    def is_configured(self) -> bool:
        return bool(self.api_key)

    @property
    def is_real(self) -> bool:
        return is_public(self.url)

    @property
    def promised_cuda(self) -> float:
        return self.cuda


def _build(settings: RunpodSettings, tools: ProviderTools) -> RunpodProvider:
    return RunpodProvider(_options(settings, tools), clock=tools.clock, pace=tools.pace)


def _options(settings: RunpodSettings, tools: ProviderTools) -> RunpodOptions:
    assert settings.api_key is not None
    return RunpodOptions(
        api_key=settings.api_key.get_secret_value(),
        base_url=settings.url,
        clouds=tuple(dict.fromkeys(settings.clouds)),
        gpu_types=tuple(settings.gpu_types),
        gpu_counts=tuple(dict.fromkeys(settings.gpu_counts)),
        data_centers=tuple(settings.data_centers),
        cuda=settings.cuda,
        cpus=settings.cpus,
        memory_gb=settings.memory_gb,
        disk_gb=settings.disk_gb,
        startup_ms=round(settings.startup_s * 1000),
        startup_deadline_ms=round(settings.startup_deadline_s * 1000),
        create_grace_ms=round(settings.create_grace_s * 1000),
        call_every_ms=round(settings.call_every_s * 1000),
        timeout_s=tools.operation_timeout_s / 5,  # a create waits for two turns, looks at the offer, creates, checks
    )


PLUGIN = ProviderPlugin(RunpodSettings, _build)
