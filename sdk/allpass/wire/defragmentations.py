"""Nodes that are vacated by moves of jobs: what is asked, planned and done."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from allpass.wire.base import Flag, MicroUsd, Request, Response, Unguessed
from allpass.wire.pools import PoolName

DefragGoal = Literal["pools", "rent"]
DefragState = Literal["planned", "asked", "moving", "done", "cancelled", "failed"]


class DefragmentationRequest(Request):
    """POST /v1/defragmentations."""

    goal: DefragGoal = Field(
        description="pools: whole hosts of pools are free afterwards; rent: rents of machines end where that saves "
        "twice what the moves cost",
    )
    pool: PoolName | None = Field(None, description="this pool alone")
    dry_run: Flag = Field(False, description="what would be done; nothing is")
    max_moves: Annotated[int, Field(ge=1, le=10_000), Unguessed] = Field(20, description="no more moves than that")


class DefragStep(Response):
    """One job from a node to another. `state`: `waiting`, `moving`, `done` or `failed`."""

    job_id: str
    source: str
    target: str
    gpus: int
    state: str
    why: str | None = Field(None, description="why it failed")


class DefragRelease(Response):
    """A node that is to be vacated, by these moves in their order. `state`: `waiting`, `moving`, `freed`, or `dropped`,
    after which no more of its moves begin."""

    node: str
    gpus: int
    state: str
    reason: str
    saves: MicroUsd = Field(0, description="what ending its rent saves; 0 for a host of a pool")
    costs: MicroUsd = Field(0, description="what its moves are expected to cost")
    pause_s: float = Field(description="expected of its moves, each times its GPUs")
    paused_s: float | None = Field(None, description="the same, as measured so far; null: none is measured yet")
    steps: list[DefragStep]
    for_job_id: str | None = Field(
        None, description="the job on several machines that waits for this node, and for others at once"
    )
    why: str | None = Field(None, description="what has come of it")


class DefragRepair(Response):
    """A job on several machines that runs under more switches than it needs, and comes together. `state`: `waiting`,
    `moving` (other machines are rented while it trains, then it goes there), `done`, or `dropped`: it trains on as it
    did."""

    job_id: str
    state: str
    machines: int
    gpus: int = Field(description="on each")
    here: str = Field(description="under which switches its machines are, or were")
    there: str = Field(description="and under which they will be, or are")
    entropy: float = Field(description="over racks and switches, of the machines as they are, or were")
    entropy_there: float
    hosts: list[str] = Field(description="that it has beside those it keeps")
    pause_s: float = Field(description="for which all of it is expected not to train")
    gain_s: float | None = Field(
        None, description="what it is expected to save of what is left of the job; null: nobody knows"
    )
    why: str | None = Field(None, description="what has come of it")


class Defragmentation(Response):
    """`id` None: a plan (`dry_run`). `occupied` of `nodes` have something on them; no packing that leaves where they
    are those that have to stay occupies fewer than `least`."""

    id: str | None = None
    goal: DefragGoal
    pool: str | None = None
    state: DefragState
    begun_by: str | None = Field(None, description="`owner`, or `schedule`")
    max_moves: int
    nodes: int | None = None
    occupied: int | None = None
    least: int | None = None
    settled: bool | None = Field(None, description="there is nothing more to find")
    left_alone: dict[str, int] = Field(default_factory=dict, description="how many jobs stay where they are, by why")
    releases: list[DefragRelease]
    held: dict[str, list[str]] = Field(
        default_factory=dict,
        description="by job on several machines, the nodes that have room for it as they are: with those that are "
        "vacated for it, all of its machines. Nobody new comes there meanwhile",
    )
    repairs: list[DefragRepair] = Field(
        default_factory=list, description="jobs on several machines that come together under fewer switches"
    )
    asked_at: datetime | None = None
    planned_at: datetime | None = None
    ended_at: datetime | None = None
    message: str | None = None


class Defragmentations(Response):
    """Of 30 days, newest first; at most 100."""

    items: list[Defragmentation]
