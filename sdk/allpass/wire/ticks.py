"""A decision of the control loop, taken again on what it saw."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from allpass.wire.base import MicroUsd, Real, Request, Response

PolicyName = Annotated[str, StringConstraints(min_length=1, max_length=50)]
RuleName = Annotated[str, StringConstraints(min_length=1, max_length=50)]
RuleValue = Annotated[Real, Field(ge=0, le=1e12, allow_inf_nan=False)]


class ReplayRequest(Request):
    """POST /v1/ticks/{id}/replay. Without anything, the decision is taken again as it was."""

    policy: PolicyName | None = Field(None, description="who decides now; default: the policy that decided then")
    rules: dict[RuleName, RuleValue] = Field(
        default_factory=dict, max_length=50, description="what the policy allpass weighs with, where it is to differ"
    )


class PlannedAction(Response):
    """An action on a job or node of the caller's project."""

    kind: str
    job_id: str | None = None
    node_id: str | None = None
    offer: str | None = Field(None, description="provider and id of what is rented")
    price_per_hour: MicroUsd | None = None
    reason: str


class ChangedWait(Response):
    """Why a job waits, where that is told differently. Null: it does not wait."""

    job_id: str
    then: str | None
    now: str | None


class HiddenActions(Response):
    """How many there are on jobs and nodes of other projects."""

    both: int
    only_then: int
    only_now: int
    waits: int


class Replay(Response):
    """What the decision was, and what it is now. Only the caller's jobs and nodes are told of; figures are of the whole
    service."""

    id: int
    at: datetime
    policy_then: str
    policy_now: str
    same: bool = Field(description="nothing of the plan differs, other projects included")
    caveat: str | None = Field(description="why it was not taken again on exactly what it was taken on")
    both: list[PlannedAction]
    only_then: list[PlannedAction]
    only_now: list[PlannedAction]
    waits: list[ChangedWait]
    unchanged_waits: int
    others: HiddenActions
    signals_then: dict[str, float] = Field(description="what the policy measured: p, F_s, C, D_gpu_s, ...")
    signals_now: dict[str, float]
