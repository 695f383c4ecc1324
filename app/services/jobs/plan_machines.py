"""On which sites a job fits over several machines, what that costs, and why they are not to be had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from allpass.wire.plan import PlanRequest
from app.core.gang_sites import machines_in_words, place_in_words, why_not_all
from app.core.machine_options import MOST_MACHINES, MachineOption, Sites, by_site, options_over
from app.core.memory.architecture import is_known
from app.core.memory.calibration import Calibrations
from app.core.memory.training import Training
from app.core.model.job import ANY_NUMBER, MostUnderOne
from app.core.model.offer import Offer
from app.core.options import AskedJob, Option
from app.core.policies.reasons import duration
from app.core.throughput import Throughput, plain_gpu
from app.errors import InvalidInput

_GB = 1_000_000_000
_NOT_KNOWN = (
    "which machines reach each other is not known yet: the control loop says it with the next listing of every provider"
)


def whole(training: Training) -> str:
    """What more machines would do for the built-in recipe."""
    if training.splits_all:
        return "all of it is split over the GPUs of all machines: with more of either each has less to hold"
    which = "machine" if training.sharded else "GPU"
    return f"more machines do not help: each {which} holds all of the training"


@dataclass(frozen=True, slots=True)
class MachinesPlan:
    """`options` the best first, `chosen` the index of what would be rented, `reason` why that, or why nothing."""

    reason: str
    options: tuple[MachineOption, ...] = ()
    chosen: int | None = None


@dataclass(frozen=True, slots=True)
class MachinesQuestion:
    """What every look at several machines goes by. `offers`: those that the project may have, with enough memory of
    the machine; `gpu_type`, `gpu_count`: what the request narrows them to."""

    wish: AskedJob
    offers: Sequence[Offer]
    sites: Sites
    throughput: Throughput
    calibrations: Calibrations
    gpu_type: str | None = None
    gpu_count: int | None = None
    most: MostUnderOne = ANY_NUMBER

    def over(self, nodes: int, gpus: int | None = None) -> tuple[MachineOption, ...]:
        """`gpus`: of each machine, for the built-in recipe, in place of its own number."""
        wish = self.wish
        if gpus is not None and wish.own is not None:
            wish = replace(wish, own=replace(wish.own, gpus=gpus))
        asked = (wish, nodes, self.offers, self.sites, self.throughput, self.calibrations)
        return options_over(*asked, gpu_count=self.gpu_count, most=self.most)


def check_machines(asked: PlanRequest) -> None:
    """Raises InvalidInput that names a field."""
    if asked.spot and (asked.nodes or 1) > 1:
        raise InvalidInput("spot is true: a spot job runs on one machine; leave it out, or nodes", param="spot")
    _check_apart(asked)
    if asked.layout is not None and asked.gpu_count is not None:
        raise InvalidInput(
            f"gpu_count is {asked.gpu_count}, and layout has gpus, {asked.layout.gpus}: leave one of them out",
            param="gpu_count",
        )
    if (asked.nodes or 1) > 1 and asked.config is not None and not is_known(asked.config):
        raise InvalidInput(
            f"nodes is {asked.nodes}, and the tables do not know this model: its memory is predicted on one GPU alone; "
            "leave nodes out",
            param="nodes",
        )


def _check_apart(asked: PlanRequest) -> None:
    rack, switch = asked.most_per_rack, asked.most_per_switch
    for name, most in (("most_per_switch", switch), ("most_per_rack", rack)):
        if most is not None and (asked.nodes or 1) == 1:
            why = f"{name} is {most}, of a job on several machines, and nodes names none; say it, or leave {name} out"
            raise InvalidInput(why, param=name)
    if rack is not None and switch is not None and switch > rack:
        raise InvalidInput(
            f"most_per_switch is {switch}, above most_per_rack ({rack}), and a switch is in one rack; say at most "
            f"{rack}, or leave it out",
            param="most_per_switch",
        )


def narrowed(asked: PlanRequest, offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Those with the GPU that is asked for."""
    if asked.gpu_type is None:
        return tuple(offers)
    wanted = plain_gpu(asked.gpu_type)
    return tuple(offer for offer in offers if plain_gpu(offer.gpu_type) == wanted)


def plan_machines(asked: PlanRequest, asking: MachinesQuestion, alone: Sequence[Option]) -> MachinesPlan | None:
    """For as many machines as are asked for; else, where nothing is sure to fit on one (`alone`), for the fewest that
    it fits on, as a further choice. None where one machine is enough."""
    nodes = asked.nodes or 1
    if nodes > 1:
        return _unknown(asking) or _on(nodes, asking)
    if alone and alone[0].verdict == "fits":
        return None
    return _unknown(asking) or _further(asking, alone)


def _unknown(asking: MachinesQuestion) -> MachinesPlan | None:
    return MachinesPlan(_NOT_KNOWN) if asking.sites.networked is None else None


def _on(nodes: int, asking: MachinesQuestion) -> MachinesPlan:
    found = asking.over(nodes)
    if not found:
        return MachinesPlan(_why_nowhere(nodes, asking))
    best = found[0]
    if best.verdict != "fits":
        return MachinesPlan(_why_too_small(nodes, asking, found), found)
    if not best.is_to_be_had:
        return MachinesPlan(_why_not_now(best, asking.most), found)
    return MachinesPlan(_why(asking.wish, found), found, 0)


def _further(asking: MachinesQuestion, alone: Sequence[Option]) -> MachinesPlan | None:
    """The fewest machines on which it fits where all are to be had; else those on which it would fit."""
    wish, own = asking.wish, asking.wish.own
    if own is not None and alone and not wish.training.splits_all:
        return MachinesPlan(whole(wish.training))
    waiting: MachinesPlan | None = None
    for nodes, gpus in _sizes(wish, is_there=bool(alone)):
        found = tuple(one for one in asking.over(nodes, gpus) if one.verdict == "fits")
        if found and found[0].is_to_be_had:
            return MachinesPlan(_why(asking.wish, found), found, 0)
        if found and waiting is None:
            waiting = MachinesPlan(_why_not_now(found[0]), found)
    return waiting


def _sizes(wish: AskedJob, *, is_there: bool) -> list[tuple[int, int | None]]:
    """Numbers of machines, and of GPUs of each where the recipe has said them. `is_there`: machines with as many."""
    if wish.own is None:
        return [*_doubled()]
    if not is_there:
        return [*_divided(wish.own.gpus)]
    return [(nodes, wish.own.gpus) for nodes, _ in _doubled() if nodes * wish.own.gpus <= wish.batch]


def _doubled() -> list[tuple[int, None]]:
    return [(1 << power, None) for power in range(1, MOST_MACHINES.bit_length())]


def _divided(gpus: int) -> list[tuple[int, int]]:
    """As many GPUs in all, of two machines or more."""
    return [(nodes, gpus // nodes) for nodes in range(2, gpus + 1) if gpus % nodes == 0]


def _why(wish: AskedJob, found: Sequence[MachineOption]) -> str:
    best = found[0]
    count = sum(1 for one in found if one.verdict == "fits" and one.is_to_be_had)
    of = f"of {count} kinds of machines where it fits and all {best.nodes} are to be had"
    if count == 1:
        of = f"it fits there, and all {best.nodes} machines are to be had"
    if best.duration_ms is None:
        return of if count == 1 else f"the cheapest per hour {of}; the time of a step is not known there"
    if wish.time_left_ms is not None and best.in_time is False:
        late = duration(best.duration_ms - wish.time_left_ms)
        return f"none where it fits ends by the deadline: these end soonest, {late} late"
    if count == 1:
        return of
    return f"the least for {wish.steps} steps {of}{' and that end by the deadline' if best.in_time else ''}"


def _why_not_now(best: MachineOption, most: MostUnderOne = ANY_NUMBER) -> str:
    what = machines_in_words(best.nodes, best.gpu_count, best.gpu_type, most)
    return f"it fits on {what}, which are not to be had now: {place_in_words(best.site)}: {best.why_not}"


def _why_too_small(nodes: int, asking: MachinesQuestion, found: Sequence[MachineOption]) -> str:
    least = min(found, key=lambda one: (one.estimated.needed, one.rank))
    told = (
        f"nothing that is offered now is sure to fit over {nodes} machines; {nodes} x {least.gpu_count} GPUs are "
        f"enough from {least.estimated.needed / _GB:.1f} GB on each"
    )
    return told if asking.wish.own is None else f"{told}; {whole(asking.wish.training)}"


def _why_nowhere(nodes: int, asking: MachinesQuestion) -> str:
    wish = asking.wish
    count = (asking.gpu_count or 1) if wish.own is None else wish.own.gpus
    usable = [one for one in asking.offers if one.gpu_count >= count and not one.spot_only]
    networked = asking.sites.networked or ()
    if wish.own is None and wish.batch % nodes and by_site(usable, networked):
        return f"a step of {wish.batch} sequences cannot be shared evenly by {nodes} machines: take a multiple as batch"
    what = machines_in_words(nodes, count, asking.gpu_type, asking.most)
    return f"no site has {what}: {why_not_all(nodes, usable, networked, asking.most, asking.sites.domains)}"
