"""Machines of a world that is not friendly: starts that end late or never, links, disks, and what they have fetched."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from app.core import billing
from app.core.arrivals import Arrivals
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import NodeView
from app.simulator.cloud import Cloud
from app.simulator.scenario import PROJECT, Scenario, Task, hosts_of
from app.simulator.worlds.arrival_history import ArrivalHistory
from app.simulator.worlds.supply import Supply, micros
from app.simulator.worlds.world import TierWorld

NEVER_MS = 10**12
_WORST = 3.0  # a slow start takes up to this many times the beginning of the tail
_STORAGE = BillingRule(unit_ms=1_000, starts=BillingStart.REQUEST)
_MB_PER_GB = 1_000


@dataclass(slots=True)
class _Host:
    """`has`: what it has fetched. `fetched_mb`: through the link of each machine that stands for it."""

    link_mbps: float
    has: set[str] = field(default_factory=set)
    fetched_mb: int = 0


class RoughCloud(Cloud):
    """As any cloud; what is drawn beside is drawn apart, so that usual starts stay what they are in a friendly world.

    `storage` and `traffic`: micro-dollars beside the price of machines, which are in the bills too. The disk of a
    machine that is up is in its price.
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._world = scenario.world
        self._fates = random.Random(f"{scenario.seed} fates")  # noqa: S311 - a simulation
        self.supply = Supply(scenario.world, scenario.seed)
        self._hosts: dict[str, _Host] = {}
        self._arrivals = ArrivalHistory()
        self.storage = self.traffic = 0

    def rent(self, offer: Offer, now_ms: int, project_id: str = PROJECT) -> tuple[NodeView, int]:
        view, ready_ms = super().rent(offer, now_ms, project_id)
        self.supply.take(view.node_id, offer)
        figures = self._world.of(offer.tier)
        link_mbps = self._fates.uniform(figures.link_least_mbps, figures.link_most_mbps)
        host = self._hosts[view.node_id] = _Host(link_mbps)
        return view, ready_ms + _through(host, figures.image_gb)

    def give_up_ms(self, tier: Tier) -> int:
        """After how long a start is given up."""
        return round(self._world.of(tier).give_up_s * 1000)

    def ready(self, node_id: str, now_ms: int) -> NodeView:
        self._fetched(node_id, self._world.of(self.machines[node_id].view.tier).image_gb)
        return super().ready(node_id, now_ms)

    def fetch_ms(self, node_id: str, task: Task) -> int:
        """How long the machine fetches what the job needs and it has not; from then on it has it."""
        view = self.machines[node_id].view
        host, figures = self._hosts[node_id], self._world.of(view.tier)
        is_fresh = not host.has
        needed = {"environment": figures.environment_gb, f"model {task.model}": self._world.model_gb}
        gb = sum(size for name, size in needed.items() if name not in host.has) + self._world.data_gb
        host.has.update(needed)
        self._fetched(node_id, gb)
        took_ms = _through(host, gb)
        if is_fresh:
            traffic = host.fetched_mb * micros(figures.traffic_usd) / _MB_PER_GB
            self._arrivals.arrived(view, took_ms + round(self._world.begin_s * 1000), traffic)
        return took_ms

    def as_learned(self, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
        known = Arrivals(self._arrivals.seen())
        return tuple(map(known.told_of, super().as_learned(offers)))

    def _fetched(self, node_id: str, gb: float) -> None:
        self._hosts[node_id].fetched_mb += round(gb * _MB_PER_GB)

    def end(self, node_id: str, now_ms: int, *, failed: bool = False) -> Money:
        machine = self.machines[node_id]
        view, figures = machine.view, self._world.of(machine.view.tier)
        many = hosts_of(view.gpu_count)
        bill = super().end(node_id, now_ms, failed=failed)
        self.supply.give_back(node_id)
        until_ms = now_ms if machine.billed_from_ms is None else machine.billed_from_ms
        disk = Money(micros(figures.storage_usd) * many)
        storage = (
            billing.cost(_STORAGE, disk, view.requested_ms, until_ms) if until_ms > view.requested_ms else Money(0)
        )
        fetched_mb = self._hosts.pop(node_id).fetched_mb
        traffic = Money(-(-fetched_mb * many * micros(figures.traffic_usd) // _MB_PER_GB))  # rounded up, as bills are
        self.storage += storage.micros
        self.traffic += traffic.micros
        self.bills[view.provider] += storage.micros + traffic.micros
        return bill + storage + traffic

    def is_up(self, node_id: str) -> bool:
        """Whether it is there, and has come up."""
        machine = self.machines.get(node_id)
        return machine is not None and machine.view.state != NodeState.BOOTING

    def _startup_ms(self, tier: Tier) -> int:
        usual_ms = super()._startup_ms(tier)
        return usual_ms if not self._market.random_startups else self._fate_ms(self._world.of(tier), usual_ms)

    def _fate_ms(self, figures: TierWorld, usual_ms: int) -> int:
        fate = self._fates.random()
        if fate < figures.never_share:
            return NEVER_MS
        fate -= figures.never_share
        if fate < figures.slow_share:
            return max(usual_ms, round(figures.slow_s * 1000 * self._fates.uniform(1, _WORST)))
        if fate - figures.slow_share < figures.cold_share:
            return max(1, round(usual_ms * figures.cold_mean_s / figures.startup_mean_s))
        return usual_ms


def _through(host: _Host, gb: float) -> int:
    """Milliseconds for so many gigabytes through its link."""
    return math.ceil(gb * 8_000_000 / host.link_mbps)
