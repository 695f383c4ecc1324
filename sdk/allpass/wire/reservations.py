"""Reservations: GPUs of a pool that a project keeps for a window, without a job."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allpass.wire.base import Instant, Label, Request, Response, Unguessed
from allpass.wire.pools import POOL_PATTERN

ReservationState = Literal["planned", "open", "short", "over"]
MOST_RESERVED = 100_000


class ReservationRequest(Request):
    """POST /v1/reservations."""

    pool: Annotated[str, StringConstraints(pattern=POOL_PATTERN, max_length=40)]
    gpu_type: Label = Field(min_length=1, description="kind of GPU, as hosts of the pool name it: `A100`")
    gpus: Annotated[int, Field(ge=1, le=MOST_RESERVED), Unguessed]
    begins_at: Instant | None = Field(None, description="when the window begins, with its zone; left out: now")
    ends_at: Instant = Field(description="a minute to 31 days later")


class Reservation(Response):
    """GPUs of a pool that are kept for a project.

    `state`: `planned` (its window has not begun), `open`, `short` (open, and some of its GPUs are not there: `why` says
    so), `over`.
    """

    id: str
    pool: str
    gpu_type: str
    gpus: int
    state: ReservationState
    created_at: datetime
    begins_at: datetime
    ends_at: datetime
    kept_gpus: int = Field(0, description="GPUs that are kept for it now")
    own_gpus: int = Field(0, description="of these, GPUs on which guaranteed jobs of the project are")
    spot_gpus: int = Field(0, description="of these, GPUs that spot jobs use: they leave when the project wants them")
    others_gpus: int = Field(
        0, description="of these, GPUs that guaranteed jobs of others use, which began before and go on"
    )
    kept_gpu_hours: float = Field(0, description="kept for it until now, whoever used them")
    ended_at: datetime | None = None
    why: str | None = Field(None, description="what is amiss, or how it ended")
