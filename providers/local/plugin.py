"""The local provider as the service finds it: its settings and how it is built."""

from __future__ import annotations

from pydantic import Field, SecretStr

from app.ports.plugin import ProviderPlugin, ProviderSettings, ProviderTools
from providers.local.adapter import LocalProvider


class LocalSettings(ProviderSettings):
    """Machines are processes on this host."""

    cloud_url: str | None = Field(None, description="Its API; unset: the local provider is absent")
    cloud_key: SecretStr | None = None

    @property
    def is_configured(self) -> bool:
        return bool(self.cloud_url and self.cloud_key)

    @property
    def is_real(self) -> bool:
        return False


def _build(settings: LocalSettings, tools: ProviderTools) -> LocalProvider:
    assert settings.cloud_url and settings.cloud_key
    key = settings.cloud_key.get_secret_value()
    return LocalProvider(settings.cloud_url, key, timeout_s=tools.operation_timeout_s, clock=tools.clock)


PLUGIN = ProviderPlugin(LocalSettings, _build)
