"""Machines of a team's own: pools, and the hosts that are in them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, Strict, StringConstraints

from allpass.wire.base import MOST_USD, Name, Request, Response, Seconds, Unguessed

POOL_PATTERN = r"^[a-z][a-z0-9-]{0,39}$"
PoolName = Annotated[str, StringConstraints(pattern=POOL_PATTERN, max_length=40)]
Launcher = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]{0,30}$", max_length=31)]
_Price = Annotated[float, Strict(), Field(ge=0, le=MOST_USD, allow_inf_nan=False)]
_Share = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
_Grace = Annotated[int, Field(ge=10, le=600), Unguessed]
_Gpus = Annotated[int, Field(ge=1, le=100_000), Unguessed]
_Preference = Annotated[int, Field(ge=0, le=1000), Unguessed]
_Hours = Annotated[str, StringConstraints(max_length=500)]
_Label = Annotated[str, StringConstraints(min_length=1, max_length=63)]
HOST_LABEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
MOST_HOST_LABELS = 32
HostLabel = Annotated[str, StringConstraints(pattern=HOST_LABEL_PATTERN, max_length=63)]
_PRICE = "dollars that a GPU costs its owner in an hour; they stand in the ledger, and nobody is billed for them"
_SPOT_SHARE = (
    "of the price, what spot jobs pay for the time in which they hold a machine and no guaranteed job does; at most "
    "six decimals. A change counts from then on, for what runs as well"
)
_GRACE = (
    "how long a job that leaves one of its hosts for another job has to save before it is killed; null: as long as "
    "anywhere (ALLPASS_STOP_GRACE_S)"
)
_REBATE = (
    "of the price, what is not paid for a machine whose job stands by (allpass standby); at most six decimals. A "
    "change counts for whoever stands by from then on"
)
_PREFERENCE = "pools with a lower one are filled first"
_PROJECTS = "ids or names of the projects that may use it; an empty list: all"
_HOURS = "when it takes jobs, in UTC, as `mon-fri 20:00-08:00, sat-sun 00:00-24:00`; empty: always"
_MOST = "how many of its GPUs are used at once; null: all"
_QUOTAS = (
    "of how many of its GPUs a project is sure, by id or name: for its guaranteed jobs up to that number others leave. "
    "Where there are quotas, what a project has beyond its own is borrowed; empty: none"
)
_HOST_QUOTAS = (
    "of which hosts a project is sure, by id or name: so many with so many GPUs each. Its guaranteed jobs have them "
    "within the grace and a start; others' spot jobs use them meanwhile, and no guaranteed job of another project; "
    "empty: none"
)
_LABELS = "for people: what it is, where it stands"


class HostQuota(Request):
    """So many hosts with so many GPUs of a kind each: `2x8xA100`."""

    hosts: Annotated[int, Field(ge=1, le=1_000), Unguessed]
    gpus: Annotated[int, Field(ge=1, le=64), Unguessed] = Field(description="of each host")
    gpu_type: Name


_HostQuotas = Annotated[list[HostQuota], Field(min_length=1, max_length=16)]


class PoolChange(Request):
    """PATCH /v1/pools/{name}: what is named changes, the rest stays."""

    price_usd: _Price | None = Field(None, description=_PRICE)
    spot_share: _Share | None = Field(None, description=_SPOT_SHARE)
    grace_s: _Grace | None = Field(None, description=_GRACE)
    rebate: _Share | None = Field(None, description=_REBATE)
    preference: _Preference | None = Field(None, description=_PREFERENCE)
    projects: list[Name] | None = Field(None, max_length=500, description=_PROJECTS)
    hours: _Hours | None = Field(None, description=_HOURS)
    most_gpus: _Gpus | None = Field(None, description=_MOST)
    quotas: dict[Name, _Gpus] | None = Field(None, max_length=500, description=_QUOTAS)
    host_quotas: dict[Name, _HostQuotas] | None = Field(None, max_length=500, description=_HOST_QUOTAS)
    labels: dict[_Label, Name] | None = Field(None, max_length=32, description=_LABELS)


class PoolRequest(PoolChange):
    """POST /v1/pools."""

    name: PoolName = Field(description="lower-case letters, digits and dashes")
    launcher: Launcher = Field(
        "joined", description="who starts machines there: `joined` for hosts that join by a token, or a provider"
    )


class PoolTokenRequest(Request):
    """POST /v1/pools/{name}/tokens: for so many hosts, and so long."""

    joins: Annotated[int, Field(ge=1, le=10_000), Unguessed] = Field(1, description="how many hosts may join with it")
    valid_s: Seconds = Field(3600, description="how long they may")


class PoolToken(Response):
    """The token is told once, and kept as a hash."""

    pool: str
    token: str = Field(repr=False)
    joins: int
    expires_at: datetime


class DrainRequest(Request):
    """What runs there moves away within that time, at an exact step; what cannot, saves and waits."""

    within_s: Seconds = Field(1200, description="when all of it has to be gone")
    host: Name | None = Field(None, description="id or name of one of its hosts; null: the whole pool")


class UndrainRequest(Request):
    """POST /v1/pools/{name}/undrain."""

    host: Name | None = Field(None, description="id or name of one of its hosts; null: the whole pool")


class HostChange(Request):
    """PATCH /v1/pools/{name}/hosts/{host}."""

    labels: dict[HostLabel, Name | None] = Field(
        min_length=1,
        max_length=MOST_HOST_LABELS,
        description="what is named is set, null takes one away, the rest stays. `switch`: the network switch that the "
        "host is under; the machines of a job on several are taken from as few as can be",
    )


class PoolHostGpu(Response):
    index: int
    type: str
    memory_bytes: int
    busy: bool = Field(description="whether somebody else's process uses it: it is not given out, and takes no blame")


class PoolHost(Response):
    """A machine that has joined."""

    id: str
    name: str = Field(description="as it calls itself")
    pool: str
    state: str = Field(
        description="`ready`, `silent` (not heard of for a minute), `draining`, `leaving`, `unusable` or `gone`"
    )
    gpus: list[PoolHostGpu]
    used: list[int] = Field(description="indices of the GPUs, or of the shares of its processors, that nodes have now")
    cpus: int
    memory_bytes: int
    driver: str | None
    why: str | None = Field(description="why it is unusable")
    labels: dict[str, str]
    joined_at: datetime
    heard_at: datetime
    leaves_at: datetime | None = Field(description="when what runs there has to be gone")


class PoolHostQuota(Response):
    """Of which hosts of a pool a project is sure, and what of them is not its own now."""

    hosts: int
    gpus: int = Field(description="of each host")
    gpu_type: str
    short_gpus: int = Field(0, description="that the pool does not have now: hosts have left, or are silent")
    blocked_gpus: int = Field(0, description="that guaranteed jobs of other projects are on, which began before")


class Pool(Response):
    """Machines of a team's own, with what their owner says about them."""

    name: str
    launcher: str
    state: str = Field(description="`open`, `closed` (outside of its hours) or `draining`")
    price_per_gpu_hour: int = Field(description="in micro-dollars")
    spot_share: float = Field(1.0, description="of it, what spot jobs pay")
    rebate: float = Field(0.5, description="of it, what is not paid for a machine whose job stands by")
    grace_s: int | None = Field(None, description=_GRACE)
    preference: int
    projects: list[str] = Field(description="ids; empty: all")
    hours: str
    most_gpus: int | None
    quotas: dict[str, int] = Field(default_factory=dict, description="GPUs by the project's id; empty: none")
    host_quotas: dict[str, list[PoolHostQuota]] = Field(
        default_factory=dict, description="whole hosts by the project's id; empty: none"
    )
    labels: dict[str, str]
    hosts: list[PoolHost]
    drains_at: datetime | None = Field(description="when what runs there has to be gone")
    created_at: datetime
