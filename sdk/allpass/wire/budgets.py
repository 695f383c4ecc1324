"""What may be spent in an hour, a day or a month."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, Strict

from allpass.wire.base import MOST_USD, Name, Reference, Request, Response

Period = Literal["hour", "day", "month"]
BudgetScope = Literal["project", "installation"]
BudgetState = Literal["open", "near", "used_up"]
_SCOPE = "whose spending counts: this project's, or that of all projects (needs scope `owner`)"
_KEY = "jobs that this API key has submitted; null: all that is spent"
_PROVIDER = "what is spent at this provider; null: at all of them"
_PERIOD = "of UTC; a month is one of the calendar"


class Budget(Response):
    """The most that is spent in each period, and what is spent in this one. In micro-dollars."""

    id: str
    scope: BudgetScope = Field(description=_SCOPE)
    key_id: str | None = Field(description=_KEY)
    provider: str | None = Field(description=_PROVIDER)
    period: Period = Field(description=_PERIOD)
    amount: int = Field(description="the most of a period")
    spent: int = Field(description="since the period began, with what is not booked yet")
    left: int = Field(description="never below 0")
    foreseen: int = Field(description="at the end of the period, if all that is rented now stays until then")
    state: BudgetState = Field(description="`near`: four fifths are spent; `used_up`: its jobs are paused, or wait")
    begins_at: datetime = Field(description="when the period began")
    ends_at: datetime = Field(description="when `spent` begins anew, and what was held goes on")
    set_by: str = Field(description="the API key that set it last")
    set_at: datetime


class BudgetRequest(Request):
    """PUT /v1/budgets: a budget for the same scope, key, provider and period is replaced."""

    scope: BudgetScope = Field("project", description=_SCOPE)
    key_id: Reference | None = Field(None, description=f"{_KEY}. Of this project; not with scope `installation`")
    provider: Name | None = Field(None, description=f"{_PROVIDER}. One that the service is, or was, configured with")
    period: Period = Field(description=_PERIOD)
    amount_usd: Annotated[float, Strict(), Field(ge=0, le=MOST_USD, allow_inf_nan=False)] = Field(
        description="the most of a period; 0: nothing may be spent"
    )
