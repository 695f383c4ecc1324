"""What is known of the rental companies that the service has credentials for."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allpass.wire.base import MicroUsd, Request, Response
from allpass.wire.price_lists import PriceList

ImageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", max_length=500)]


class ProviderFailure(Response):
    """The last call that failed."""

    call: str = Field(description="offers, create, get, find, list, terminate or logs")
    code: str
    message: str
    at: datetime


class ProviderPrices(Response):
    """What is on offer of one type of GPU in one tier, per GPU and hour."""

    tier: Literal["serverless", "own", "marketplace", "conventional"]
    gpu_type: str
    offers: int
    lowest: MicroUsd
    highest: MicroUsd


class BarredHost(Response):
    """Nothing is rented on this host before `until`. `failures`: machines there that came to nothing."""

    host: str
    failures: int
    until: datetime


class ImageBuild(Response):
    """A provider's copy of an image. `state`: wanted (its build has not begun), building, ready (machines can run it),
    or failed."""

    provider: str
    image: str
    state: Literal["wanted", "building", "ready", "failed"]
    since: datetime
    ready_at: datetime | None = Field(description="when a build that goes on is expected to be done")
    took_ms: int | None = Field(description="how long the last one took")
    failures: int = Field(description="in a row")
    why: str | None = Field(description="of one that failed, with what to do about it")
    log: str | None = Field(description="of one that failed: the builder's last lines")
    again_at: datetime | None = Field(
        description="of one that failed: when it is tried again; null: when it is asked for"
    )


class ImageBuilds(Response):
    """By provider and image."""

    images: list[ImageBuild]


class ImageRequest(Request):
    """`provider`: only there; without it, at every provider that builds images."""

    image: ImageName
    provider: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None


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
    images: list[ImageBuild] = Field(
        default_factory=list, description="builds of the usual image and of those that this project uses"
    )
    barred_hosts: list[BarredHost] = Field(description="single hosts of a marketplace that failed lately, by name")
    price_list: PriceList | None = Field(
        None, description="where the company has no interface for prices; null: they come with every listing"
    )


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


class ReachFinding(Response):
    """What the service met on the way from itself to its own public address. `code` is stable; `fix` is empty where
    nothing is wrong."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    code: str
    message: str
    fix: str


class ProviderChecks(Response):
    """One for every provider that the service has credentials for, by name."""

    checks: list[ProviderCheck]
    reach: list[ReachFinding] = Field(
        default_factory=list, description="of API and object store through their public addresses, where asked for"
    )


class PriceRefresh(Response):
    """What a provider lists now. `code` is null when it was asked, or had nothing to be asked."""

    name: str
    code: str | None
    message: str
    offers: int | None = Field(description="that could be rented there now")
    took_ms: int = Field(ge=0)
    price_list: PriceList | None = Field(
        description="where the company has no interface for prices: the list, which no refresh makes newer; else null"
    )


class PriceRefreshes(Response):
    """One for every provider that the service has credentials for, by name."""

    refreshes: list[PriceRefresh]
