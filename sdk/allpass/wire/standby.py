"""Jobs that stand by: their GPUs are lent for a while."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allpass.wire.base import Deadline, Flag, MicroUsd, Request, Response

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
ClockTime = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", max_length=5)]
StandbyState = Literal["leaving", "lent", "called_back", "ending", "over"]


class StandbyRequest(Request):
    """POST /v1/jobs/{job_id}/standby."""

    until: Deadline = Field(
        description='until when its GPUs are lent: "8h" from now, or an instant with its zone, '
        "`2026-11-28T08:00+01:00`; from a minute to seven days from now. For a job that "
        "stands by already it is its window from now on"
    )
    lose_steps: Flag = Field(
        False,
        description="also a job that does not save when it is asked to: it begins again, from its last checkpoint",
    )


class Standby(Response):
    """A job that stands by, or did.

    `state`: `leaving` (its code saves), `lent`, `called_back` (spot jobs leave its GPUs, or it begins again there),
    `ending` (it does not come back to its machine, which ends), `over`.
    """

    id: str
    job_id: str
    state: StandbyState
    gpus: int = Field(description="of its machine, all of which are lent")
    used_gpus: int = Field(description="of them, those that other machines have now")
    asked_at: datetime
    until: datetime
    left_at: datetime | None = None
    called_at: datetime | None = None
    back_at: datetime | None = Field(None, description="when its code ran again")
    ended_at: datetime | None = None
    why: str | None = Field(None, description="why it was called back, or how it ended")
    rebate_share: float = Field(
        description="of its machine's price, what is not paid for the time in which it stands by"
    )
    paid: MicroUsd = Field(0, description="for that time, as far as it has been metered")
    rebate: MicroUsd = Field(0, description="not paid for it")
    price_per_hour: MicroUsd = Field(0, description="what its machine costs meanwhile: its price less the rebate")
    slack_ms: int | None = Field(
        None,
        description="its deadline less when it will be done, if it comes back at the end of its window; negative: late",
    )


class Standbys(Response):
    """Of a job, newest first; at most 100."""

    items: list[Standby]


class WindowRequest(Request):
    """POST /v1/jobs/{job_id}/standby/windows. Times are what the zone's clocks show."""

    days: Annotated[list[Day], Field(min_length=1, max_length=7)] = Field(
        description="days on which a window begins; each once"
    )
    begins: ClockTime = Field(description="when it begins on these days: `20:00`")
    ends: ClockTime = Field(description="when it ends; on the day after, where that is no later than it begins")
    zone: Annotated[str, StringConstraints(min_length=1, max_length=100)] = Field(
        description="name of a time zone, as in the IANA database: `Europe/Rome`, `UTC`"
    )
    lose_steps: Flag = Field(False, description="as of a single window")


class Window(Response):
    """Hours in which a job stands by, again and again, while it runs."""

    id: str
    job_id: str
    days: list[str]
    begins: str
    ends: str
    zone: str
    lose_steps: bool = False
    created_at: datetime
    next_at: datetime | None = Field(
        None, description="when the next window begins; past: it is open, and not begun yet"
    )
    next_until: datetime | None = None
    ended_at: datetime | None = None
    why: str | None = Field(None, description="how it ended")


class Windows(Response):
    """Of a job, newest first; at most 100."""

    items: list[Window]
