"""What is simulated: the jobs, the market, the clocks of machines, and what is known of run times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from app.core.model.job import PriorityClass
from app.core.model.money import MICROS_PER_USD, Money
from app.core.model.node import RENTED_TIERS, BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.policy import PAPER_MOVE, MoveCost
from app.simulator.bids import BidMarket, with_bids
from app.simulator.gpu_types import ONE, SimulatedGpu, TaskSpeeds
from app.simulator.mergeable import Trainee
from app.simulator.own.machines import OwnMachines
from app.simulator.prices import PriceCurve
from app.simulator.ranges.drawing import TaskRange
from app.simulator.worlds.known import FRIENDLY
from app.simulator.worlds.world import World

A100 = "A100"
A100_MEMORY_BYTES = 80 * 1024**3
PROJECT = "project"
PROVIDERS = {Tier.SERVERLESS: "modal", Tier.MARKETPLACE: "vast", Tier.CONVENTIONAL: "lambda"}


@dataclass(frozen=True, slots=True)
class StartUp:
    """From request to ready. A log-normal with this mean and standard deviation, or always the mean."""

    mean_s: float
    sd_s: float

    def location_and_scale(self) -> tuple[float, float]:
        """Of the underlying normal distribution."""
        variance = math.log(1 + (self.sd_s / self.mean_s) ** 2)
        return math.log(self.mean_s) - variance / 2, math.sqrt(variance)


def start_ups(world: World) -> dict[Tier, StartUp]:
    """Of the usual starts of a world."""
    return {tier: StartUp(world.of(tier).startup_mean_s, world.of(tier).startup_sd_s) for tier in RENTED_TIERS}


START_UPS = start_ups(FRIENDLY)
BILLING = {
    Tier.SERVERLESS: BillingRule(unit_ms=1_000, starts=BillingStart.REQUEST),
    Tier.MARKETPLACE: BillingRule(unit_ms=1_000, starts=BillingStart.READY),
    Tier.CONVENTIONAL: BillingRule(unit_ms=60_000, starts=BillingStart.READY),
    Tier.OWN: BillingRule(unit_ms=1_000, starts=BillingStart.READY),
}


GPUS_OF_A_HOST = 8


def hosts_of(gpu_count: int) -> int:
    """How many hosts a node of so many GPUs is made of: rented and given back in one piece, which is ready when the
    last of them is. Wherever nodes are counted it is one; only what a short market has left is counted in hosts."""
    return -(-gpu_count // GPUS_OF_A_HOST)


@dataclass(frozen=True, slots=True)
class Task:
    """A job to come. Times in milliseconds from the start of the trace."""

    job_id: str
    submit_ms: int
    work_ms: int
    gpus: int
    deadline_ms: int
    predicted_ms: int | None = None  # of its run time; None: nobody ever knows
    known_after_ms: int = 0  # of running; 0: at submission
    kind: Literal["interactive", "batch"] = "batch"
    trainee: Trainee | None = None  # of the built-in recipe: may be merged
    saves: bool = True  # when asked to, and every `checkpoint_every_ms`; else never: it begins again when stopped
    refined: bool = False  # the prediction gets better as it runs
    known: bool = True  # of one that never saves: that it does not, before it begins
    own_saves_ms: int | None = None  # of one that saves by itself alone: how far apart, in work
    model: int = 0  # which base model it fetches
    project: str = PROJECT
    priority_class: PriorityClass = PriorityClass.GUARANTEED
    speeds: TaskSpeeds | None = None  # of one that takes any type of GPU; else it takes A100s
    elastic: TaskRange | None = None  # of one that takes a range of GPUs: its work is still that on `gpus`


@dataclass(frozen=True, slots=True)
class SimulatedMarket:
    """Prices per GPU and hour in dollars, over time, and how machines start and are billed."""

    prices: dict[Tier, PriceCurve]
    startups: dict[Tier, StartUp] = field(default_factory=lambda: dict(START_UPS))
    random_startups: bool = True
    limits: dict[Tier, int] = field(default_factory=dict)  # hosts of a tier that are to be had at once
    mean_life_s: dict[Tier, float] = field(default_factory=dict)  # of a machine until it fails; absent: for ever
    gpus: tuple[SimulatedGpu, ...] = ONE  # prices are an A100's
    bids: BidMarket | None = None  # for hosts of the marketplace

    def traits(self) -> tuple[ProviderTraits, ...]:
        return tuple(
            ProviderTraits(
                provider=PROVIDERS[tier],
                tier=tier,
                billing=BILLING[tier],
                startup_mean_ms=round(self.startups[tier].mean_s * 1000),
                startup_deadline_ms=round(self.startups[tier].mean_s * 10_000),
                create_grace_ms=0,
                dies_with_run=tier == Tier.SERVERLESS,
                preemptible=tier == Tier.MARKETPLACE,
            )
            for tier in sorted(self.prices)
        )

    def offers(self, now_s: float, gpu_counts: tuple[int, ...], left: dict[Tier, int]) -> tuple[Offer, ...]:
        """What can be rented now, and is left of its tier."""
        found = tuple(
            Offer(
                provider=PROVIDERS[tier],
                offer_id=f"{gpu.name}x{count}",
                tier=tier,
                gpu_type=gpu.name,
                gpu_count=count,
                gpu_memory_bytes=gpu.memory_bytes,
                cpus=8 * count,
                memory_bytes=count * A100_MEMORY_BYTES,
                price_per_hour=Money(round(curve.at(now_s) * gpu.shares[tier] * count * MICROS_PER_USD)),
                startup_ms=round(self.startups[tier].mean_s * 1000),
            )
            for tier, curve in sorted(self.prices.items())
            for gpu in self.gpus
            if tier in gpu.shares
            for count in gpu_counts
            if left.get(tier, hosts_of(count)) >= hosts_of(count)
        )
        return found if self.bids is None else with_bids(found, self.bids, now_s)

    def next_change_s(self, now_s: float) -> float | None:
        """When a price changes next; None: never."""
        curves = [*self.prices.values(), *([] if self.bids is None else [self.bids.lowest])]
        changes = (curve.next_change_after(now_s) for curve in curves)
        return min((at for at in changes if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of the simulator, whatever the policy."""

    tasks: tuple[Task, ...]
    market: SimulatedMarket
    seed: int = 0
    moves: MoveCost = PAPER_MOVE
    checkpoint_every_ms: int = 600_000  # of running, against failures of machines
    ahead: bool = True  # machines are rented ahead, and kept idle, for jobs to come
    max_wait_ms: int | None = None  # how long each job may be kept waiting for its first place
    world: World = FRIENDLY
    own: OwnMachines | None = None  # machines of the team itself
