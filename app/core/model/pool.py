"""A pool: machines of a team's own, with what their owner says about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.core.model.money import ZERO, Money
from app.core.spot_share import FULL

JOINED = "joined"  # the launcher of hosts that join by a token; others are providers of their own, as `slurm`
CPU = "CPU"  # what a host gives in place of GPUs to jobs that name it,
CPU_FOR_ALL = "CPU*"  # and to those that name no GPU: where there is nothing else
SHORTEST_GRACE_MS = 10_000
MOST_GRACE_MS = 600_000
HALF = FULL // 2
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES


@dataclass(frozen=True, slots=True)
class Hours:
    """A part of each week, in minutes since Monday 00:00 UTC. `to` may lie behind the end of the week."""

    from_minute: int
    to_minute: int


@dataclass(frozen=True, slots=True)
class HostQuota:
    """`hosts` times `gpus` of a kind, each time on one host, that a project is always sure of, by its id. `short_gpus`:
    that the pool does not have now; `blocked_gpus`: that guaranteed jobs of others are on, which began before."""

    project_id: str
    gpu_type: str
    gpus: int
    hosts: int
    short_gpus: int = field(default=0, compare=False)
    blocked_gpus: int = field(default=0, compare=False)

    @property
    def total(self) -> int:
        return self.gpus * self.hosts


@dataclass(frozen=True, slots=True)
class Pool:
    """`price` is of a GPU and hour. `preference`: pools with a lower one are filled first. `projects`: who may use it;
    empty: all. `hours`: when; empty: always. `most_gpus` at once; None: as many as there are. `drains_ms`: by when
    what runs there has to be gone, and nothing new comes; None: it takes jobs. `quotas`: of how many of its GPUs a
    project is sure, by the project's id; `host_quotas`: of which hosts; both empty: nobody of any, and any guaranteed
    job may have spot jobs leave.
    `spot_parts`: what spot jobs pay of its price, in millionths. `grace_ms`: how long a job has to save that leaves its
    hosts for another one; None: as long as anywhere. `rebate_parts`: of its price, in millionths, what a job that
    stands by does not pay."""

    name: str
    launcher: str = JOINED
    price: Money = ZERO
    preference: int = 0
    projects: tuple[str, ...] = ()
    hours: tuple[Hours, ...] = ()
    most_gpus: int | None = None
    drains_ms: int | None = None
    quotas: tuple[tuple[str, int], ...] = ()
    host_quotas: tuple[HostQuota, ...] = ()
    spot_parts: int = FULL
    rebate_parts: int = HALF
    grace_ms: int | None = None

    @property
    def has_quotas(self) -> bool:
        """Whether what is beyond somebody's quota is borrowed there."""
        return bool(self.quotas or self.host_quotas)


@dataclass(frozen=True, slots=True)
class HostGpu:
    """One GPU of a host, as the host says. `is_busy`: a process that is not ours uses it."""

    index: int
    name: str
    memory_bytes: int
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class OwnHost:
    """A machine that has joined. `taken`: indices of its GPUs, or of its shares where it has none, that are given out;
    `awaited`: how many more of each kind are promised to nodes that have no machine yet. `is_open`: it is heard of, and
    is not to be left. `for_all`: its processors are also for jobs that name no GPU. `lent`: indices that a job which
    stands by has lent to spot jobs, whoever uses them now. `kept`: by index, the project that has reserved it now."""

    host_id: str
    pool: str
    cpus: int
    memory_bytes: int
    gpus: tuple[HostGpu, ...] = ()
    taken: tuple[int, ...] = ()
    awaited: dict[str, int] = field(default_factory=dict)
    is_open: bool = True
    for_all: bool = False
    lent: tuple[int, ...] = ()
    kept: dict[int, str] = field(default_factory=dict)
