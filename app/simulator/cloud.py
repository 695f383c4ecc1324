"""The machines of a simulation: how long they take to start, what they cost, and the views that policies see."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.core import billing
from app.core.lifecycle import NODE_TRANSITIONS, pass_over
from app.core.machine_lives import MachineLives
from app.core.model.money import MICROS_PER_USD, ZERO, Money
from app.core.model.node import BillingStart, NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import NodeView
from app.simulator.machine_history import MachineHistory
from app.simulator.outcomes import JobOutcome
from app.simulator.scenario import BILLING, PROJECT, PROVIDERS, Scenario, hosts_of


@dataclass(slots=True)
class SimulatedMachine:
    """`billed_from_ms` is None until it costs anything, `ready_ms` until it is up."""

    view: NodeView
    billed_from_ms: int | None
    ready_ms: int | None = None


class Cloud:
    """Rents and ends machines, and adds up the bills as the providers would write them."""

    def __init__(self, scenario: Scenario) -> None:
        self._market = scenario.market
        self._chance = random.Random(f"{scenario.seed} machines")  # noqa: S311 - a simulation
        self.machines: dict[str, SimulatedMachine] = {}
        self._history = MachineHistory()
        # Once one has failed; of bids something is believed before.
        self._lives = None if scenario.market.bids is None else MachineLives(())
        self._bid_chance = random.Random(f"{scenario.seed} lost bids")  # noqa: S311 - a simulation
        self._bid_micros = self._bid_gpu_ms = 0
        self.bills: Counter[str] = Counter()  # micro-dollars by provider
        self.billed_gpu_ms: Counter[str] = Counter()  # GPU-milliseconds by provider, before rounding to billing units
        self.hosts: Counter[Tier] = Counter()  # of all nodes that are rented now: what a short market has fewer of
        self._rented = self._rented_gpus = 0  # serverful nodes now, and their GPUs
        self.most_rented = self.most_gpus = 0  # the same at once, at most
        self.made = 0

    def rent(self, offer: Offer, now_ms: int, project_id: str = PROJECT) -> tuple[NodeView, int]:
        """A machine that is asked for now, and when it will be ready."""
        self.made += 1
        expected_ms = now_ms + offer.startup_ms
        view = NodeView(
            node_id=f"node_{self.made:07d}",
            project_id=project_id,
            provider=offer.provider,
            tier=offer.tier,
            state=NodeState.BOOTING,
            row_version=1,
            gpu_type=offer.gpu_type,
            gpu_count=offer.gpu_count,
            gpu_memory_bytes=offer.gpu_memory_bytes,
            cpus=offer.cpus,
            memory_bytes=offer.memory_bytes,
            free_gpus=tuple(range(offer.gpu_count)),
            price_per_hour=offer.price_per_hour,
            requested_ms=now_ms,
            expected_ready_ms=expected_ms,
            region=offer.region,
            arrival_ms=offer.arrival_ms,
            arrival_micros=offer.arrival_micros,
            spot_only=offer.spot_only,
            # Of a bid something is believed at once; of other machines what failures teach, from the next one on.
            mean_life_ms=offer.mean_life_ms if offer.interruptible else 0,
        )
        at_request = BILLING[offer.tier].starts == BillingStart.REQUEST
        self.machines[view.node_id] = SimulatedMachine(view, now_ms if at_request else None)
        self._count(view, 1)
        return view, now_ms + max(self._startup_ms(offer.tier) for _ in range(hosts_of(view.gpu_count)))

    def ready(self, node_id: str, now_ms: int) -> NodeView:
        """It has come up, and is idle unless it was rented for a run."""
        machine = self.machines[node_id]
        machine.ready_ms = now_ms
        if machine.billed_from_ms is None:
            machine.billed_from_ms = now_ms
        idle = len(machine.view.free_gpus) == machine.view.gpu_count
        state = pass_over(NODE_TRANSITIONS, machine.view.state, NodeState.READY)
        return self.change(node_id, state=state, idle_since_ms=now_ms if idle else None)

    def change(self, node_id: str, **changes: object) -> NodeView:
        machine = self.machines[node_id]
        # Its fields by name.
        view = replace(machine.view, row_version=machine.view.row_version + 1, **changes)  # type: ignore[arg-type]
        machine.view = view
        return view

    def hold(self, node_id: str, gpus: tuple[int, ...]) -> NodeView:
        """Give GPUs of it away."""
        free = self.machines[node_id].view.free_gpus
        return self.change(node_id, free_gpus=tuple(gpu for gpu in free if gpu not in gpus), idle_since_ms=None)

    def free(self, node_id: str, gpus: tuple[int, ...], now_ms: int) -> NodeView:
        """Take them back."""
        view = self.machines[node_id].view
        free = tuple(sorted((*view.free_gpus, *gpus)))
        is_idle = len(free) == view.gpu_count and view.state != NodeState.BOOTING
        return self.change(node_id, free_gpus=free, idle_since_ms=now_ms if is_idle else None)

    def end(self, node_id: str, now_ms: int, *, failed: bool = False) -> Money:
        """Its rent ends; returns its bill."""
        machine = self.machines.pop(node_id)
        view = machine.view
        pass_over(NODE_TRANSITIONS, view.state, NodeState.TERMINATING)
        self._count(view, -1)
        if machine.ready_ms is not None and view.tier != Tier.OWN:
            self._history.ended(view, now_ms - machine.ready_ms, failed=failed, now_ms=now_ms)
        bill = ZERO
        if machine.billed_from_ms is not None:
            bill = billing.cost(BILLING[view.tier], view.price_per_hour, machine.billed_from_ms, now_ms)
            self.billed_gpu_ms[view.provider] += view.gpu_count * (now_ms - machine.billed_from_ms)
        self.bills[view.provider] += bill.micros
        if view.interruptible and machine.billed_from_ms is not None:
            self._bid_micros += bill.micros
            self._bid_gpu_ms += view.gpu_count * (now_ms - machine.billed_from_ms)
        return bill

    def learn(self, now_ms: int) -> list[NodeView]:
        """A machine failed: how long machines live is told anew. Gives back those of which it changed."""
        known = self._lives = self._history.lives(self._present(now_ms), now_ms)
        changed = []
        for node_id, machine in self.machines.items():
            view = machine.view
            mean_ms = known.mean_ms(view.provider, view.tier, view.gpu_type, interruptible=view.interruptible)
            if mean_ms != view.mean_life_ms:
                changed.append(self.change(node_id, mean_life_ms=mean_ms))
        return changed

    def as_learned(self, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
        """With how long their machines live."""
        return offers if self._lives is None else tuple(map(self._lives.told_of, offers))

    def _present(self, now_ms: int) -> list[tuple[NodeView, int]]:
        rented = (one for one in self.machines.values() if one.view.tier != Tier.OWN)
        return [(one.view, now_ms - one.ready_ms) for one in rented if one.ready_ms is not None]

    def life_ms(self, tier: Tier) -> int | None:
        """How long a machine that comes up now will live; None: for ever."""
        mean_s = self._market.mean_life_s.get(tier)
        return None if mean_s is None else max(1, round(self._chance.expovariate(1 / mean_s) * 1000))

    def bid_life_ms(self, node_id: str, now_ms: int) -> int | None:
        """How long a machine that is ready now stays until its bid is lost; None: it was not bid for, or for ever."""
        view, bids = self.machines[node_id].view, self._market.bids
        if bids is None or not view.interruptible:
            return None
        lost_s = bids.lost_s(view.requested_ms / 1000, now_ms / 1000, self._bid_chance)
        return None if math.isinf(lost_s) else max(1, math.ceil(lost_s * 1000) - now_ms)

    def bid_figures(self, outcomes: Iterable[JobOutcome]) -> dict[str, float]:
        """Dollars and GPU-hours of what was bid for, and how often a job lost its place to a higher bid."""
        lost = sum(one.lost_bids for one in outcomes)
        return {"bid_usd": self._bid_micros / 1e6, "bid_gpu_hours": self._bid_gpu_ms / 3.6e6, "lost_bids": lost}

    def charge(self, tier: Tier, gpu_ms: int, usd_per_hour: float) -> float:
        """GPU time of a tier that no machine here stands for; returns its dollars."""
        provider, usd = PROVIDERS[tier], usd_per_hour * gpu_ms / 3_600_000
        self.bills[provider] += round(usd * MICROS_PER_USD)
        self.billed_gpu_ms[provider] += gpu_ms
        return usd

    def left(self) -> dict[Tier, int]:
        """How many hosts of the limited tiers are to be had."""
        return {tier: limit - self.hosts[tier] for tier, limit in self._market.limits.items()}

    def _count(self, node: NodeView, change: int) -> None:
        """One node more or less. It is one for policies and their limit, however many hosts it is made of."""
        self.hosts[node.tier] += change * hosts_of(node.gpu_count)
        if node.tier in (Tier.SERVERLESS, Tier.OWN):
            return
        self._rented += change
        self._rented_gpus += change * node.gpu_count
        self.most_rented = max(self.most_rented, self._rented)
        self.most_gpus = max(self.most_gpus, self._rented_gpus)

    def _startup_ms(self, tier: Tier) -> int:
        startup = self._market.startups[tier]
        if not self._market.random_startups:
            return round(startup.mean_s * 1000)
        location, scale = startup.location_and_scale()
        return max(1, round(self._chance.lognormvariate(location, scale) * 1000))
