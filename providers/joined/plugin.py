"""Joined hosts as the service finds them: there whenever there is a database; without hosts they offer nothing."""

from __future__ import annotations

from pydantic import Field

from app.ports.plugin import ProviderPlugin, ProviderSettings, ProviderTools
from providers.joined.adapter import JoinedHosts


class JoinedSettings(ProviderSettings):
    """Machines of one's own."""

    enabled: bool = Field(True, description="Whether hosts that have joined a pool are used")
    startup_deadline_s: float = Field(
        60.0, gt=0, description="A machine on such a host that is not up by then is given up"
    )

    @property
    def is_configured(self) -> bool:
        return self.enabled

    @property
    def is_real(self) -> bool:
        return False


def _build(settings: JoinedSettings, tools: ProviderTools) -> JoinedHosts:
    return JoinedHosts(tools.hosts, startup_deadline_ms=round(settings.startup_deadline_s * 1000))


PLUGIN = ProviderPlugin(JoinedSettings, _build)
