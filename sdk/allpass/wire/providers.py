"""What is known of the rental companies that the service has credentials for."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from allpass.wire.base import MicroUsd, Response


class ProviderFailure(Response):
    """The last call that failed."""

    call: str = Field(description="offers, create, get, find, list, terminate or logs")
    code: str
    message: str
    at: datetime


class ProviderPrices(Response):
    """What is on offer of one type of GPU in one tier, per GPU and hour."""

    tier: Literal["serverless", "marketplace", "conventional"]
    gpu_type: str
    offers: int
    lowest: MicroUsd
    highest: MicroUsd


class BarredHost(Response):
    """Nothing is rented on this host before `until`. `failures`: machines there that came to nothing."""

    host: str
    failures: int
    until: datetime


class Provider(Response):
    """`state`: ok, failing (its last call failed), paused (the account's limit was reached), refused (it does not take
    our credentials: nothing is rented there until a check succeeds), or unknown (nobody has asked it yet)."""

    name: str
    state: Literal["ok", "failing", "paused", "refused", "unknown"]
    why: str | None = Field(description="what is wrong, in words; null when nothing is")
    last_success_at: datetime | None
    last_failure: ProviderFailure | None
    quota_errors: int = Field(description="how often the account's limit was in the way")
    refused_at: datetime | None
    paused_until: datetime | None
    machines: int = Field(description="this project's machines there that are not gone")
    offers: int
    prices: list[ProviderPrices]
    barred_hosts: list[BarredHost] = Field(description="single hosts of a marketplace that failed lately, by name")


class Providers(Response):
    """Every provider that the service has credentials for, by name."""

    providers: list[Provider]


class ProviderCheck(Response):
    """Whether a provider takes our credentials. `code` is null when it does."""

    name: str
    code: str | None
    message: str
    machines: int | None = Field(description="listed in the account as this service's")
    offers: int | None
    took_ms: int = Field(ge=0)


class ProviderChecks(Response):
    """One for every provider that the service has credentials for, by name."""

    checks: list[ProviderCheck]
