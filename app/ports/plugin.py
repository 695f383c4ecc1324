"""What a package adds to rent from one more company: an entry point in the group `allpass.providers`.

The entry point's name is the provider's, its object a `ProviderPlugin`. Settings are read from `ALLPASS_<NAME>_...`.
How to write one: docs/guides/write-a-provider.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from pydantic_settings import BaseSettings, SettingsConfigDict

from app.core.images.logins import RegistryLogins
from app.ports.clock import Clock
from app.ports.failures import HostFailures
from app.ports.hosts import OwnHosts
from app.ports.pace import Pace
from app.ports.prices import OwnPrices, ProcessOwnPrices
from app.ports.provider import Provider

GROUP = "allpass.providers"


class ProviderSettings(BaseSettings):
    """One provider's section of the settings: a field `api_key` of the provider `shed` is `ALLPASS_SHED_API_KEY`.

    Fields that open an account are of type `SecretStr`: a stack of one machine does not hand them on unasked, and they
    never stand in a message. `opens_account` names fields that do so too, and are no secrets.
    """

    opens_account: ClassVar[frozenset[str]] = frozenset()

    model_config = SettingsConfigDict(env_file=None, extra="forbid")

    @property
    def is_configured(self) -> bool:
        """Whether there are credentials. Without them the provider is absent, and not broken."""
        raise NotImplementedError

    @property
    def is_real(self) -> bool:
        """Whether its machines cost real money: limits count them, and they must be able to reach the service."""
        return True

    @property
    def promised_cuda(self) -> float:
        """The oldest CUDA that a machine's driver may stop at; 0 where offers promise none."""
        return 0.0


Section = TypeVar("Section", bound=ProviderSettings)


@dataclass(frozen=True, slots=True)
class ProviderTools:
    """What the service lends an adapter. `pace` and `host_failures` are shared by all processes of the installation.

    `operation_timeout_s`: how long one call of the protocol may take, waiting for its turn included; an adapter's own
    timeouts lie within it. `logins`: for images of private registries.
    `own_prices`: what an owner set in place of prices that a list of the adapter has. `hosts`: those that have joined a
    pool; None: a tool runs alone.
    """

    clock: Clock
    pace: Pace
    host_failures: HostFailures
    operation_timeout_s: float
    logins: RegistryLogins = field(default_factory=RegistryLogins)
    own_prices: OwnPrices = field(default_factory=ProcessOwnPrices)
    hosts: OwnHosts | None = None


@dataclass(frozen=True, slots=True)
class ProviderPlugin(Generic[Section]):
    """`build` is called once in each process that rents, and only with credentials. Without calls to the company: what
    it raises takes the provider out, or, of those that ship with Allpass, keeps the server from starting."""

    settings: type[Section]
    build: Callable[[Section, ProviderTools], Provider]
