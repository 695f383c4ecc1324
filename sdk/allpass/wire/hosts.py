"""What a host of a pool says, and what it is told; as agents do, it dials in and is never called.

Control is level-triggered: the host reports what is, the reply says what should be. The program on the host is
stdlib-only and does not import this module. Every path is under `/v1/agent/hosts`; `/join` carries the pool's token as
bearer, all others the host's own. Unknown fields are ignored in both directions.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from allpass.wire.agent import Id
from allpass.wire.base import Flag, Message, Name, Response, Unguessed
from allpass.wire.pools import MOST_HOST_LABELS, HostLabel

_Text = Annotated[str, StringConstraints(max_length=300)]
_Index = Annotated[int, Field(ge=0, le=1023), Unguessed]
_Bytes = Annotated[int, Field(ge=0, le=2**53), Unguessed]
MOST_GPUS = 64
MOST_MACHINES = 256
LONGEST_LOG = 16_000


class HostGpuFacts(Message):
    """`busy`: a process that none of our machines started uses it."""

    index: _Index
    name: Annotated[str, StringConstraints(max_length=100)]
    memory_bytes: Annotated[int, Field(ge=1, le=2**53), Unguessed]
    busy: Flag = False


class HostFacts(Message):
    """`unusable`: why nothing can run there, in words; empty: it can. `for_all`: where it gives its processors, also to
    jobs that name no GPU."""

    cpus: Annotated[int, Field(ge=1, le=65_536), Unguessed]
    memory_bytes: Annotated[int, Field(ge=1, le=2**53), Unguessed]
    disk_free_bytes: _Bytes = 0
    gpus: list[HostGpuFacts] = Field(default_factory=list, max_length=MOST_GPUS)
    driver: Annotated[str, StringConstraints(max_length=40)] = ""
    system: Annotated[str, StringConstraints(max_length=200)] = ""
    unusable: _Text = ""
    for_all: Flag = False


class HostJoinRequest(Message):
    """POST /join. `nonce`: what the host made up at its first start and keeps; the same one is the same host.
    `labels`: what its owner says of it, as the switch that it is under; they count for a host that is new."""

    nonce: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    boot_id: Annotated[str, StringConstraints(max_length=100)]
    facts: HostFacts
    labels: dict[HostLabel, Name] = Field(default_factory=dict, max_length=MOST_HOST_LABELS)


class HostJoinReply(Response):
    host_id: str
    host_token: str = Field(repr=False)
    pool: str


class HostMachineReport(Message):
    """`state`: starting, running or ended. `log`: the last of what it writes, where that is new."""

    id: Id
    state: Annotated[str, StringConstraints(max_length=20)]
    detail: _Text = ""
    log: Annotated[str, StringConstraints(max_length=LONGEST_LOG)] | None = None


class HostSyncRequest(Message):
    """POST /sync. `version`: of the orders that it has; the answer waits until there are others, `wait_s` at most."""

    boot_id: Annotated[str, StringConstraints(max_length=100)]
    facts: HostFacts
    machines: list[HostMachineReport] = Field(default_factory=list, max_length=MOST_MACHINES)
    version: Annotated[int, Field(ge=0, lt=2**31), Unguessed] = 0
    wait_s: Annotated[float, Field(ge=0, le=60, strict=True)] = 0.0
    leaving: Flag = False


class HostMachineOrder(Response):
    """`environment`: what its agent is started with; null for one that has been started. `ends`: it is to be over."""

    id: str
    node_id: str
    gpu_indices: list[int]
    environment: dict[str, str] | None = Field(repr=False)
    ends: bool


class HostSyncReply(Response):
    """`gone`: nothing of ours runs there any more, and the host is in no pool."""

    version: int
    machines: list[HostMachineOrder]
    leaving: bool
    gone: bool
