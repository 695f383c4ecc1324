"""Prices of companies that have no interface for them: a list with a date, and what an owner set in its place."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import Field, Strict, StringConstraints

from allpass.wire.base import Flag, MicroUsd, Name, Request, Response

MOST_PRICES = 200
MOST_USD_PER_HOUR = 10_000
UsdPerHour = Annotated[float, Strict(), Field(gt=0, le=MOST_USD_PER_HOUR, allow_inf_nan=False)]
Day = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\d$", max_length=10)]


class ListPrice(Response):
    """One price per hour: as published, and as it is known better. `used` counts in decisions and for the bill; it is
    null for what nothing is rented with now."""

    name: str
    published: MicroUsd | None
    setting: MicroUsd | None = Field(description="in the settings of the service, in place of the published one")
    own: MicroUsd | None = Field(description="set by an owner: counts before all others")
    set_at: datetime | None = Field(description="when the owner set it")
    set_by: str | None = Field(description="the API key that set it")
    used: MicroUsd | None
    source: Literal["owner", "setting", "list"] | None = Field(description="whose price is used")
    as_of: date | None = Field(description="the day of the price that is used; null for one of the settings")
    is_old: bool = Field(False, description="that day is more than 180 days ago")


class PriceList(Response):
    """`is_old`: a price that is used is older than 180 days. Compare it with what the company asks now."""

    as_of: date = Field(description="the day on which the list was published")
    oldest: date | None = Field(description="the earliest day among the prices in use; null: all are from the settings")
    is_old: bool
    prices: list[ListPrice]


class OwnPricesRequest(Request):
    """PUT /v1/providers/{provider}/prices: each price takes the place of an earlier one of its name; others stay."""

    prices: dict[Name, UsdPerHour] = Field(
        min_length=1, max_length=MOST_PRICES, description="dollars per hour, by the names of the list"
    )
    as_of: Day | None = Field(None, description="the day on which the company asked these prices; default: today, UTC")
    confirm: Flag = Field(
        False, description="also prices of more than three times the one in use, or less than a third of it"
    )
