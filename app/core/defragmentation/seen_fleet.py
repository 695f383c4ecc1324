"""What a defragmentation is decided on: the snapshot of decisions, and what it does not show of pools and machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from app.core.gang_offers import GangNode
from app.core.model.node import BillingRule
from app.core.model.pool import OwnHost, Pool
from app.core.model.snapshot import Snapshot
from app.core.topology import Domain, SwitchRule


class Goal(StrEnum):
    """What nodes are vacated for."""

    POOLS = "pools"  # whole hosts of own pools, for jobs that need one or several whole
    RENT = "rent"  # the rent of machines ends where that saves more than the moves cost


@dataclass(frozen=True, slots=True)
class HeldGpus:
    """What a live run has. `resized`: it was told to use another number of GPUs than its job asks for."""

    gpus: int
    resized: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """`place`: the GPUs of one kind on a host of a pool that the node is cut from; empty for rented ones."""

    place: str
    rule: BillingRule
    billed_from_ms: int | None = None

    def owed_until_ms(self, now_ms: int) -> int:
        """Up to when its rent is owed even if it ends now: a minimum, or a unit that has begun."""
        if self.billed_from_ms is None:
            return now_ms
        unit_ms = max(1, self.rule.unit_ms)
        used_ms = max(now_ms - self.billed_from_ms, self.rule.minimum_ms)
        return self.billed_from_ms + -(-used_ms // unit_ms) * unit_ms


@dataclass(frozen=True, slots=True)
class MoveHabits:
    """How moves have gone lately. `pause_ms`: for how long training pauses; `failed_share`: of those that were begun,
    0 to 1."""

    pause_ms: int
    prepare_ms: int
    failed_share: float

    @property
    def cost_ms(self) -> int:
        """Time of training that a move is expected to cost: its pause, and that of the next try where it fails."""
        return round(self.pause_ms * (1 + self.failed_share))


@dataclass(frozen=True, slots=True)
class SeenFleet:
    """`held` by run, `facts` by node, `names` of hosts by id. `kept`: nodes, hosts and their places where something is
    kept for a job that waits. `kept_hosts`: places of hosts that are kept whole for jobs on several machines, by whose
    they are: nobody comes there, and whoever is there may leave. `domains`: rack and switch of hosts, by their id.
    `provided`: jobs on several machines that wait, and have machines, or have others leave for them. `rented`: the
    machines of jobs on several, `rule`: by which their switches are chosen. `gains_ms`: by such a job that trains, what
    each further step takes less under one switch, as far as that is known."""

    snapshot: Snapshot
    habits: MoveHabits
    pools: Sequence[Pool] = ()
    hosts: Sequence[OwnHost] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, HeldGpus] = field(default_factory=dict)
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    kept_hosts: Mapping[str, str] = field(default_factory=dict)
    domains: Mapping[str, Domain] = field(default_factory=dict)
    provided: frozenset[str] = frozenset()
    rented: Sequence[GangNode] = ()
    rule: SwitchRule = SwitchRule.FEWEST
    gains_ms: Mapping[str, float] = field(default_factory=dict)

    def is_kept(self, place: str) -> bool:
        """Whether something that is there already is kept for whoever waits."""
        return place in self.kept or place.partition("/")[0] in self.kept

    def is_shut(self, place: str) -> bool:
        """Whether nobody may come there."""
        return self.is_kept(place) or place in self.kept_hosts

    def kept_for(self, place: str) -> str | None:
        """The job on several machines that the host is kept for."""
        return self.kept_hosts.get(place)
