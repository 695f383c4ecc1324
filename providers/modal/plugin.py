"""Modal as the service finds it: its settings and how it is built."""

from __future__ import annotations

from decimal import Decimal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from app.core.reach import is_public
from app.errors import InvalidInput
from app.ports.plugin import ProviderPlugin, ProviderSettings, ProviderTools
from app.ports.provider import Provider

_ADAPTER_SHARE = 0.9


class ModalSettings(ProviderSettings):
    """One workspace at Modal."""

    token_id: SecretStr | None = Field(None, description="Both of the token: with them, Modal is rented from")
    token_secret: SecretStr | None = Field(None, validate_default=True)
    server_url: str | None = Field(None, description="Unset: Modal itself")
    app: str = Field(
        "allpass", max_length=63, pattern=r"^[A-Za-z0-9._-]+$", description="The App that all sandboxes belong to"
    )
    environment: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="Where the sandboxes are; empty: the workspace's default environment",
    )
    cpus: int = Field(4, ge=1, le=64, description="Physical cores for each GPU; billed beside it")
    memory_gib: int = Field(32, ge=1, le=336, description="Memory for each GPU; billed beside it")
    gpus: list[str] | None = Field(None, description='Only these, as JSON: ["A100-80GB", "H100"]; unset: all')
    prices: dict[str, Decimal] = Field(
        default_factory=dict,
        description='Dollars per hour in place of the published ones: {"H100": 3.95, "cpu": 0.1}',
    )
    cuda: float = Field(0.0, ge=0, description="Oldest CUDA that a driver may stop at; 0: not looked at")
    startup_s: float = Field(3.88, gt=0, description="How long a start takes, for weighing offers")
    startup_deadline_s: float = Field(180.0, gt=0, description="A machine that has not called by then is given up")
    create_grace_s: float = Field(30.0, gt=0, description="So long a new machine may be missing from the listing")

    @property
    def is_configured(self) -> bool:
        return bool(self.token_id and self.token_secret)

    @property
    def is_real(self) -> bool:
        """Its client takes several addresses, separated by commas. Without any it asks Modal itself."""
        return not self.server_url or any(is_public(url) for url in self.server_url.split(","))

    @property
    def promised_cuda(self) -> float:
        return self.cuda

    @field_validator("token_secret")
    @classmethod
    def _whole_token(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if bool(value) != bool(info.data.get("token_id")):
            raise ValueError("ALLPASS_MODAL_TOKEN_ID and ALLPASS_MODAL_TOKEN_SECRET go together")
        return value


def _build(settings: ModalSettings, tools: ProviderTools) -> Provider:
    """Raises InvalidInput naming a setting that is malformed."""
    # Modal's client takes its time to load: only for those who use it.
    from providers.modal.adapter import ModalProvider, Times
    from providers.modal.catalogue import Catalogue, Shape
    from providers.modal.link import Account
    from providers.modal.sdk import MODAL_SERVER_URL

    assert settings.token_id is not None
    assert settings.token_secret is not None
    try:
        shape = Shape(settings.cpus, settings.memory_gib)
        startup_ms = round(settings.startup_s * 1000)
        catalogue = Catalogue(shape, gpus=settings.gpus, usd_per_hour=settings.prices, startup_ms=startup_ms)
    except ValueError as error:
        raise InvalidInput(f"ALLPASS_MODAL_GPUS or ALLPASS_MODAL_PRICES: {error}", param="modal_prices") from error
    account = Account(
        token_id=settings.token_id.get_secret_value(),
        token_secret=settings.token_secret.get_secret_value(),
        server_url=settings.server_url or MODAL_SERVER_URL,
        app=settings.app,
        environment=settings.environment,
    )
    # Within what an operation has, so that the adapter's own word comes before the caller's "no answer".
    timeout_s = _ADAPTER_SHARE * tools.operation_timeout_s
    times = Times(
        startup_ms=startup_ms,
        startup_deadline_ms=round(settings.startup_deadline_s * 1000),
        create_grace_ms=round(settings.create_grace_s * 1000),
    )
    return ModalProvider(
        account,
        catalogue,
        clock=tools.clock,
        timeout_s=timeout_s,
        times=times,
        logins=tools.logins,
        own_prices=tools.own_prices,
    )


PLUGIN = ProviderPlugin(ModalSettings, _build)
