"""What a job could be rented: every type and count of GPUs on offer, with its layout, its time and its cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.core.layout import GpuSet, Learned, lay_out_alone
from app.core.machine_lives import weighed_micros
from app.core.memory import Architecture, Estimate, Training, Verdict, verdict
from app.core.memory.calibration import Calibration, Calibrations, corrected
from app.core.memory.exact import Exact, ExactEstimate, decide, layouts_alone
from app.core.memory.need import Stated
from app.core.memory.plans import Device, FeasiblePlan, feasible_plans, least_memory
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import X86_64, Offer
from app.core.precision import on_gpu
from app.core.throughput import StepTime, Throughput

VERDICTS: tuple[Verdict, ...] = ("fits", "tight", "no")
_SHARDINGS = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp")
_MOST_GPUS = 64
_HOUR_MS = 3_600_000
_Kind = tuple[str, int, int]  # GPU type, GPUs, bytes of each


@dataclass(frozen=True, slots=True)
class OwnLayout:
    """Of a script that trains on so many GPUs of a machine, with a whole copy on each. What is None follows from the
    GPU, once it is known."""

    gpus: int = 1
    micro_batch: int | None = None
    checkpointing: bool | None = None


@dataclass(frozen=True, slots=True)
class AskedJob:
    """A job that is asked about. `steps_given`: otherwise time and cost of `steps` only compare offers.

    `training` has what the user decided; batch, accumulation, GPUs and layout are the plan's to choose, unless the
    script has one of its `own`.
    """

    name: str
    model: Architecture
    training: Training
    batch: int
    steps: int
    steps_given: bool = True
    time_left_ms: int | None = None
    exact: Exact | None = None
    own: OwnLayout | None = None


@dataclass(frozen=True, slots=True)
class Quote:
    """What one offer means for the job. None where nobody knows how long a step takes there.

    `duration_ms` is from now until the last step, start-up included; `cost` is the price of that time. `likely_cost`:
    with the work that is done twice, where such machines are known to fail, as decisions weigh it.
    """

    offer: Offer
    duration_ms: int | None = None
    cost: Money | None = None
    in_time: bool | None = None
    steps_in_time: int | None = None
    likely_cost: Money | None = None

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """In time before late, late before unknown; then the cheapest, or of the late ones the soonest."""
        price = weighed_micros(self.offer)
        if self.duration_ms is None or self.cost is None:
            return 2, 0, price, self.offer.key
        if self.in_time is False:
            return 1, self.duration_ms, price, self.offer.key
        return 0, (self.likely_cost or self.cost).micros, price, self.offer.key


@dataclass(frozen=True, slots=True)
class Option:
    """One type and count of GPUs. `training` is the layout: the quickest that fits, or the one that needs least.

    `calibration` is what the estimate was corrected by, `decided` what a symbolic run made of it instead. Where it is
    not sure to fit, time and cost are not told: the job would end with its first step. `quotes` has the
    cheapest offer of each provider and tier, the best first.
    """

    gpu_type: str
    gpu_count: int
    gpu_memory_bytes: int
    verdict: Verdict
    training: Training
    estimated: Estimate
    calibration: Calibration | None
    step: StepTime | None
    quotes: tuple[Quote, ...]
    decided: ExactEstimate | None = None

    @property
    def best(self) -> Quote:
        return self.quotes[0]

    @property
    def rank(self) -> tuple[int, tuple[int, int, int, str], int, str, int]:
        return VERDICTS.index(self.verdict), self.best.rank, self.gpu_count, self.gpu_type, self.gpu_memory_bytes


def options_for(
    wish: AskedJob, offers: Iterable[Offer], throughput: Throughput, calibrations: Calibrations
) -> tuple[Option, ...]:
    """Every kind of GPU that is offered, the best first: those that fit, by what the job costs there within its
    deadline; then those where it may or may not fit; then the rest."""
    offered = by_kind(offers)
    known = {gpu_type: calibrations.of(wish.model, wish.training, gpu_type) for gpu_type, _, _ in offered}
    devices = {kind: Device(str(number), kind[2], kind[1], known[kind[0]]) for number, kind in enumerate(offered)}
    there = {kind: replace(wish, training=on_gpu(wish.training, kind[0])) for kind in offered}
    layouts = {} if wish.own is not None else _layouts(there, devices)
    found: list[Option] = []
    for kind, device in devices.items():
        if wish.own is None:
            on_it = there[kind]
            layout, estimated, step, decided = _layout(on_it, layouts[on_it.training], device, kind[0], throughput)
        else:
            layout, estimated, step, decided = _own_layout(wish, wish.own, device, kind[0], throughput)
        quotes = sorted((_quote(wish, offer, step) for offer in offered[kind]), key=lambda quote: quote.rank)
        told = verdict(estimated, kind[2])
        calibration = device.calibration if decided is None else None
        found.append(Option(*kind, told, layout, estimated, calibration, step, tuple(quotes), decided))
    return tuple(sorted(found, key=lambda option: option.rank))


def _layouts(there: Mapping[_Kind, AskedJob], devices: Mapping[_Kind, Device]) -> Mapping[Training, _Layouts]:
    """By the training, which is another where the GPU decides what is computed in."""
    wishes = {wish.training: wish for wish in there.values()}
    groups = {each: [devices[kind] for kind, wish in there.items() if wish.training == each] for each in wishes}
    return {each: _Layouts(wishes[each], group) for each, group in groups.items()}


def _layout(
    wish: AskedJob, layouts: _Layouts, device: Device, gpu_type: str, throughput: Throughput
) -> tuple[Training, Estimate, StepTime | None, ExactEstimate | None]:
    """The quickest layout that fits, and goes on fitting where a symbolic run decides; else the most sparing one."""
    fitting = list(layouts.fitting(device))
    while fitting:
        best, step = _quickest(wish, fitting, gpu_type, throughput)
        decided = decided_of(wish, best.training, best.estimated)
        estimated = best.estimated if decided is None else decided.estimated
        if verdict(estimated, device.capacity_bytes) == "fits":
            return best.training, estimated, step, decided
        fitting.remove(best)
    layout, estimated = layouts.least(device)
    decided = decided_of(wish, layout, estimated)
    if decided is None:
        return layout, estimated, None, None
    fits = verdict(decided.estimated, device.capacity_bytes) == "fits"
    found = throughput.step(wish.model, layout, gpu_type, name=wish.name) if fits else None
    return layout, decided.estimated, found, decided


def _own_layout(
    wish: AskedJob, own: OwnLayout, device: Device, gpu_type: str, throughput: Throughput
) -> tuple[Training, Estimate, StepTime | None, ExactEstimate | None]:
    """That of its run on its part of the machine's GPUs."""
    place = GpuSet(gpu_type, device.capacity_bytes, own.gpus)
    found = lay_out_alone(stated_alone(wish, own), place, Learned(device.calibration, throughput))
    return found.training, found.estimated, found.step, found.decided


def stated_alone(wish: AskedJob, own: OwnLayout) -> Stated:
    """A wish for GPUs of its own, as a job states it."""
    plain = replace(wish.training, batch=1, accumulation=1, gpus=1, sharding="none", checkpointing=False)
    cut = own.micro_batch, own.checkpointing
    return Stated(wish.name, wish.model, plain, wish.batch, own.gpus, *cut, wish.exact, whole=True)


def decided_of(wish: AskedJob, layout: Training, estimated: Estimate) -> ExactEstimate | None:
    """What a symbolic run of this layout decided, if there is one."""
    return None if wish.exact is None else decide(wish.exact, layout, estimated)


def options_alone(exact: Exact, training: Training, batch: int, offers: Iterable[Offer]) -> tuple[Option, ...]:
    """For a model that the tables do not know: on one GPU of each kind, as its symbolic runs showed. How long a step
    takes is not known. Empty where the runs leave no layout that keeps the batch."""
    layouts = sorted(layouts_alone(exact, training, batch), key=lambda each: (each[0].checkpointing, -each[0].batch))
    if not layouts:
        return ()
    found: list[Option] = []
    for kind, sold in by_kind(offers).items():
        fitting = [each for each in layouts if verdict(each[1].estimated, kind[2]) == "fits"]
        least = min(layouts, key=lambda each: each[1].estimated.allocated.expected)
        layout, decided = fitting[0] if fitting else least
        told = verdict(decided.estimated, kind[2])
        quotes = tuple(sorted(map(Quote, sold), key=lambda quote: quote.rank))
        found.append(Option(*kind, told, layout, decided.estimated, None, None, quotes, decided))
    return tuple(sorted(found, key=lambda option: option.rank))


class _Layouts:
    """The layouts of a job on each kind of GPU. Plain ones first: the others are looked at where no plain one fits, and
    where the one that needs the least memory does."""

    def __init__(self, wish: AskedJob, devices: Iterable[Device]) -> None:
        self._wish = wish
        self._plans: dict[str, list[FeasiblePlan]] = {}
        self._least: dict[int, tuple[Training, Estimate]] = {}
        plans = feasible_plans(wish.model, wish.training, devices, global_batch=wish.batch, plain=True)
        for plan in plans:
            self._plans.setdefault(plan.device, []).append(plan)

    def fitting(self, device: Device) -> Sequence[FeasiblePlan]:
        """Those that fit; empty where none does."""
        plans = self._plans.get(device.name)
        if plans is not None or verdict(self.least(device)[1], device.capacity_bytes) != "fits":
            return plans or ()
        wish = self._wish
        return feasible_plans(wish.model, wish.training, (device,), global_batch=wish.batch)

    def least(self, device: Device) -> tuple[Training, Estimate]:
        """The one that needs the least memory on each GPU."""
        wish = self._wish
        if device.most not in self._least:
            found = least_memory(wish.model, wish.training, device.most, global_batch=wish.batch)
            self._least[device.most] = found
        layout, estimated = self._least[device.most]
        return layout, corrected(estimated, device.calibration)


def _quickest(
    wish: AskedJob, plans: Iterable[FeasiblePlan], gpu_type: str, throughput: Throughput
) -> tuple[FeasiblePlan, StepTime | None]:
    """Few scripts can split matrices over GPUs: such layouts are taken where nothing else fits."""
    timed = [(plan, throughput.step(wish.model, plan.training, gpu_type, name=wish.name)) for plan in plans]
    return min(
        timed,
        key=lambda each: (
            each[0].training.tensor_parallel > 1,
            0.0 if each[1] is None else each[1].ms,
            _effort(each[0].training),
        ),
    )


def _effort(training: Training) -> tuple[int, int, bool, int, int]:
    """All the GPUs, then the least work for the same step: for equals, and for GPUs without figures."""
    return (
        -training.gpus,
        training.tensor_parallel,
        training.checkpointing,
        _SHARDINGS.index(training.sharding),
        training.accumulation,
    )


def by_kind(offers: Iterable[Offer]) -> Mapping[_Kind, tuple[Offer, ...]]:
    """The cheapest offer of each provider and tier, for every kind; what no job can use is left out."""
    found: dict[_Kind, dict[tuple[str, Tier], Offer]] = {}
    for offer in offers:
        if offer.cpu_architecture != X86_64:
            continue  # only for jobs that name its GPU, and a plan is asked about whatever fits
        if not (0 < offer.gpu_count <= _MOST_GPUS and offer.gpu_memory_bytes > 0):
            continue
        sellers = found.setdefault((offer.gpu_type, offer.gpu_count, offer.gpu_memory_bytes), {})
        seller = offer.provider, offer.tier
        if seller not in sellers or _price(offer) < _price(sellers[seller]):
            sellers[seller] = offer
    return {kind: tuple(sellers.values()) for kind, sellers in sorted(found.items())}


def _price(offer: Offer) -> tuple[int, str]:
    """What an hour of work costs there."""
    return weighed_micros(offer), offer.key


def _quote(wish: AskedJob, offer: Offer, step: StepTime | None) -> Quote:
    if step is None:
        return Quote(offer)
    duration_ms = offer.startup_ms + round(wish.steps * step.ms)
    cost = Money(offer.price_per_hour.micros * duration_ms // _HOUR_MS)
    likely = Money(weighed_micros(offer) * duration_ms // _HOUR_MS) if offer.mean_life_ms else None
    quote = Quote(offer, duration_ms, cost, likely_cost=likely)
    if wish.time_left_ms is None:
        return quote
    in_time = duration_ms <= wish.time_left_ms if wish.steps_given else None
    done = max(wish.steps if in_time else 0, int((wish.time_left_ms - offer.startup_ms) / step.ms))
    return replace(quote, in_time=in_time, steps_in_time=done)
