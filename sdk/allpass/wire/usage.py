"""What has been used, and what could be rented."""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal

from pydantic import Field

from allpass.wire.base import MicroUsd, Response


class UsageLine(Response):
    """One group's share of one payer.

    `payer`: run (a job's GPUs), boot (before a machine rented for the job was ready), idle (nobody held the GPUs),
    orphan (a machine that nobody owned, until it was found and ended).
    Idle time counts for the job that left the machine last before, and before any came for the one that it was rented
    for. `key` is null for what belongs to no group: a machine that was rented ahead, a job without the label, one
    whose API key was not noted, and by size what no run held.
    """

    key: str | None
    name: str | None = Field(None, description="what people call the key: the name of a job, an app or an API key")
    payer: Literal["run", "boot", "idle", "orphan"]
    cost: MicroUsd
    gpu_ms: int = Field(ge=0, description="GPU-milliseconds: GPUs times time")


class UsageRest(Response):
    """The lines that were not listed, in one sum."""

    lines: int
    cost: MicroUsd
    gpu_ms: int


class Usage(Response):
    """From the ledger. `cost` is exactly the sum of the lines and the rest.

    A stretch of time counts, whole, where it begins: costs of adjoining times add up exactly.
    """

    group_by: str
    from_at: datetime | None = Field(description="the first moment that counts; null: from the start")
    to_at: datetime | None = Field(description="the first moment that does not count; null: until now")
    lines: list[UsageLine]
    rest: UsageRest
    cost: MicroUsd
    gpu_ms: int
    idle_cost: MicroUsd = Field(0, description="of `cost`: for machines that stood idle, which nobody held")
    so_far: bool = Field(description="machines are still running: the cost grows")
    open_nodes: int = Field(description="so many machines")


class Offer(Response):
    """Something that could be rented now. `price_per_hour` is for all its GPUs."""

    provider: str
    offer_id: str
    tier: Literal["serverless", "own", "marketplace", "conventional"]
    gpu_type: str
    gpu_count: int
    gpu_memory_bytes: int = Field(description="per GPU")
    cpus: int
    memory_bytes: int
    region: str
    price_per_hour: MicroUsd
    price_per_gpu_hour: MicroUsd
    spot_price_per_hour: MicroUsd | None = Field(
        None, description="of a pool where spot jobs pay a share: what a spot job pays; null: as any other"
    )
    startup_ms: int = Field(description="expected time from request to ready")
    traffic_per_gb: MicroUsd | None = Field(
        None, description="of a gigabyte to or from the internet, whichever is dearer; null: nothing beside the hours"
    )
    mean_life_ms: int | None = Field(
        None, description="how long such machines live until they fail, as seen here lately; null: too few have failed"
    )
    cpu_architecture: Literal["x86_64", "arm64"] = Field(
        "x86_64", description="arm64: only jobs that name this type of GPU are placed there"
    )
    interruptible: bool = Field(
        False, description="a bid: lost without a word as soon as somebody pays more; for spot jobs that save alone"
    )
    seen_at: datetime
    price_as_of: date | None = Field(
        None, description="the day of the price, where the company has no interface for prices; null: it told it then"
    )
    price_is_old: bool = Field(False, description="that day is more than 180 days ago: see /v1/providers")
