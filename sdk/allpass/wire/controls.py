"""Steering a job while it lives, and asking why it is where it is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from allpass.wire.base import Deadline, Flag, Label, Name, Request, Response, Retries, Seconds, Unguessed, Usd
from allpass.wire.jobs import JobStatus


class JobUpdate(Request):
    """Change a job that is not over. A field that is left out stays as it is; `null` takes a limit away.

    `soft_deadline` is written as at submission, and counts from now. `labels` are merged: `null` removes one.
    """

    soft_deadline: Deadline | None = Field(None, description="never null: a job has a deadline")
    max_cost_usd: Usd | None = None
    max_duration_s: Seconds | None = Field(None, description="counted from when its code first ran")
    max_hourly_usd: Usd | None = Field(
        None, description="of the places that it is given from now on; where it runs, it stays"
    )
    max_wait_s: Seconds | None = Field(
        None, description="counted from its submission; of no effect once it has had a place"
    )
    retries: Retries | None = Field(None, description="of all its failures, those before included; null: the default")
    labels: dict[Name, Label | None] = Field(default_factory=dict, max_length=64)


class PauseRequest(Request):
    """The body may be left out."""

    lose_steps: Flag = Field(
        False, description="pause a job whose checkpoints are not kept, and lose what it has done since the last one"
    )


_Number = Annotated[int, Field(ge=1, le=64), Unguessed]


class ResizeRequest(Request):
    """How many GPUs, or machines with the GPUs that it has on each, the job is to have from now on, wherever it is. One
    of the two."""

    gpus: _Number | None = Field(
        None, description="on each machine; a training that runs has at most 8, those of one machine"
    )
    nodes: _Number | None = Field(None, description="machines that it runs on at once")


class Sentence(Response):
    """A fact in words, with the numbers and names it is made of. Times in `data` are milliseconds since the epoch."""

    text: str
    data: dict[str, Any] = Field(default_factory=dict)


class DeadlineOutlook(Response):
    """Whether the job will meet its soft deadline, as far as that can be known.

    `slack_ms`: the deadline minus the estimated (or actual) finish; negative when it is late. None: not known.
    """

    at: datetime
    given: bool = Field(description="False: the service's default")
    estimated_finish_at: datetime | None = None
    slack_ms: int | None = None
    text: str


class Explanation(Response):
    """Why a job is where it is, from what is on record. What is not known is said to be unknown, never guessed.

    `because` goes from the nearest reason to the furthest; `next` from the soonest step to the latest. `history` is
    the path of the events behind it.
    """

    job_id: str
    status: JobStatus
    headline: str
    because: list[Sentence]
    next: list[Sentence]
    deadline: DeadlineOutlook
    history: str
