"""Machines on hosts of a team's own: there within a second, from a free GPU, and given back at once."""

from __future__ import annotations

from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import NodeView
from app.core.pools import STARTUP_MS
from app.simulator.cloud import Cloud
from app.simulator.own.fleet import OwnFleet
from app.simulator.own.machines import OwnMachines
from app.simulator.scenario import PROJECT, Scenario
from app.simulator.worlds.hosts import RoughCloud


class OwnCloud(Cloud):
    """As any cloud, with the GPUs of one's own beside what is rented."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.fleet = OwnFleet(scenario.own or OwnMachines((), (), ()))

    def rent(self, offer: Offer, now_ms: int, project_id: str = PROJECT) -> tuple[NodeView, int]:
        view, ready_ms = super().rent(offer, now_ms, project_id)
        if offer.tier == Tier.OWN:
            self.fleet.take(view.node_id, offer, now_ms)
        return view, ready_ms

    def end(self, node_id: str, now_ms: int, *, failed: bool = False) -> Money:
        bill = super().end(node_id, now_ms, failed=failed)
        self.fleet.give_back(node_id)
        return bill

    def _startup_ms(self, tier: Tier) -> int:
        return STARTUP_MS if tier == Tier.OWN else super()._startup_ms(tier)


class RoughOwnCloud(OwnCloud, RoughCloud):
    """In a rougher world: what a host has fetched stays on its disk, whoever fetched it."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._on_disk: dict[str, set[str]] = {}  # by host of one's own

    def rent(self, offer: Offer, now_ms: int, project_id: str = PROJECT) -> tuple[NodeView, int]:
        view, ready_ms = super().rent(offer, now_ms, project_id)
        if offer.tier == Tier.OWN:
            self._hosts[view.node_id].has = self._on_disk.setdefault(offer.host, set())
        return view, ready_ms
