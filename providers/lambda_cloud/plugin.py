"""Lambda Cloud as the service finds it: its settings and how it is built."""

from __future__ import annotations

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from app.core.reach import is_public
from app.ports.plugin import ProviderPlugin, ProviderSettings, ProviderTools
from providers.lambda_cloud.adapter import LambdaProvider
from providers.lambda_cloud.options import LambdaOptions


class LambdaSettings(ProviderSettings):
    """One account at Lambda."""

    api_key: SecretStr | None = Field(None, description="Unset: the provider lambda is absent")
    url: str = "https://cloud.lambda.ai"
    ssh_key: str = Field(
        "", validate_default=True, description="Name of an SSH key of the account: a launch must name one; required"
    )
    regions: list[str] | None = Field(None, description='Only there, as JSON: ["us-east-1"]; unset: anywhere')
    cuda: float = Field(0.0, ge=0, description="Oldest CUDA that a driver may stop at; 0: not looked at")
    startup_s: float = Field(255.59, gt=0, description="How long a start with one GPU takes, for weighing offers")
    startup_deadline_s: float = Field(
        1800.0, gt=0, description="A machine that has not called home by then is given up"
    )
    create_grace_s: float = Field(60.0, gt=0, description="So long a new machine may be missing from the listing")
    call_every_s: float = Field(1.1, ge=0, description="Least time between two calls, for all processes")
    launch_every_s: float = Field(12.5, ge=0, description="Least time between two launches, for all processes")

    @property
    def is_configured(self) -> bool:
        return bool(self.api_key)

    @property
    def is_real(self) -> bool:
        return is_public(self.url)

    @property
    def promised_cuda(self) -> float:
        return self.cuda

    @field_validator("ssh_key")
    @classmethod
    def _named_key(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("api_key"):
            raise ValueError("required with ALLPASS_LAMBDA_API_KEY")
        return value


def _build(settings: LambdaSettings, tools: ProviderTools) -> LambdaProvider:
    return LambdaProvider(_options(settings, tools), clock=tools.clock, pace=tools.pace)


def _options(settings: LambdaSettings, tools: ProviderTools) -> LambdaOptions:
    assert settings.api_key is not None
    return LambdaOptions(
        api_key=settings.api_key.get_secret_value(),
        ssh_key=settings.ssh_key,
        base_url=settings.url,
        regions=tuple(settings.regions or ()),
        startup_ms=round(settings.startup_s * 1000),
        startup_deadline_ms=round(settings.startup_deadline_s * 1000),
        create_grace_ms=round(settings.create_grace_s * 1000),
        call_every_ms=round(settings.call_every_s * 1000),
        launch_every_ms=round(settings.launch_every_s * 1000),
        timeout_s=tools.operation_timeout_s / 4,  # a create looks at the offer, waits for its turn, and launches
    )


PLUGIN = ProviderPlugin(LambdaSettings, _build)
