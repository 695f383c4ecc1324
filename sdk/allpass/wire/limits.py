"""What the installation may rent from companies that ask for real money."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from allpass.wire.base import Request, Response, Usd

_MACHINES = "most machines at once; null: no limit"
_DAY = "most that is spent in a day of UTC"


class Limits(Response):
    """Over all projects, at real providers alone: machines of this host and emulated ones do not count."""

    machines: int | None = Field(description=_MACHINES)
    per_day: int | None = Field(description=f"{_DAY}, in micro-dollars; null: no limit")
    providers: list[str] = Field(description="the real providers that are configured")
    machines_rented: int = Field(description="now, those that start or end included")
    spent_today: int = Field(description="micro-dollars since 00:00 UTC, with what is not booked yet")
    day_ends_at: datetime = Field(description="when `spent_today` begins anew")


class LimitsUpdate(Request):
    """PATCH /v1/limits: what is not named stays as it is; null takes a limit away."""

    machines: int | None = Field(None, ge=0, le=1_000_000, description=_MACHINES)
    per_day_usd: Usd | None = Field(None, description=f"{_DAY}; null: no limit")
