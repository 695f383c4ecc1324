"""Which ranges of a board go on on a machine of another size: for a deadline, for money, or for time. Pure.

`deadlines` and `other_machines` weigh one machine against another; here is which machines there are to be weighed, and
who may leave the one that it is on (ADR 0122, 0125).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from app.core.board import LASTING_NODE_STATES, Board
from app.core.elastic.deadlines import DeadlineGrowth, SizedMachine, grow_for_deadline
from app.core.elastic.other_machines import SPARE, MoveTimes, larger_machine, smaller_machine
from app.core.elastic.profile import SpeedProfile
from app.core.elastic.runs import ElasticRun
from app.core.market import Market
from app.core.model.money import Money
from app.core.model.node import SERVERFUL_TIERS, NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Assign, Migrate, MoveOut, Plan, Release
from app.core.model.snapshot import JobView, NodeView
from app.core.policies.placement import Fleet
from app.core.policies.reasons import duration
from app.core.policy import PolicyConfig

SMALLER, LARGER = "moves_smaller", "moves_larger"  # events of a job, which says with them that it has changed
LOOK_MS = 30_000  # between two looks
AGAIN_MS = 3_600_000  # a job goes to a machine of another size no more than once an hour
PATIENCE_MS = 600_000  # it waits so long for the machine that it was to have for its deadline


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """`gpus`: as many as the job begins with there. `kind`: of the event that tells it. `move`: to a machine that is
    rented for it, or to one that is there and idle."""

    run: ElasticRun
    gpus: int
    kind: str
    move: MoveOut | Migrate


@dataclass(frozen=True, slots=True)
class SeenRanges:
    """What is looked at. `is_crowded`: somebody waits, or has just been given something. `may_rent`: settings allow one
    more machine, while the one that is left is still there. `idle`: rented machines that nobody is on."""

    board: Board
    profiles: Mapping[str, SpeedProfile]
    config: PolicyConfig
    is_crowded: bool
    may_rent: bool
    idle: Sequence[NodeView] = ()

    @property
    def times(self) -> MoveTimes:
        moves = self.config.moves
        return MoveTimes((moves.save_ms + moves.load_ms) / 1000, moves.prepare_ms / 1000)


def rents_less_than(limit: int, nodes: Iterable[NodeView]) -> bool:
    """Whether fewer machines than that are rented, or come."""
    rented = sum(_is_rented(node) and node.state in LASTING_NODE_STATES for node in nodes)
    return rented < limit


def idle_machines(nodes: Iterable[NodeView], taken: Collection[str]) -> list[NodeView]:
    """Rented machines that are ready, wholly free and not `taken`: whoever is on one, or is given one now."""
    free = (node for node in nodes if node.state is NodeState.READY and len(node.free_gpus) == node.gpu_count)
    return sorted((node for node in free if _is_rented(node) and node.node_id not in taken), key=lambda it: it.node_id)


def nodes_in(plan: Plan) -> set[str]:
    """Machines that the plan speaks of: it gives something there, or gives them back."""
    return {one.node_id for one in plan.actions if isinstance(one, Assign | Migrate | Release)}


def may_leave(job: JobView, changed_ms: int | None, now_ms: int) -> bool:
    """Whether its code saves when it is asked to, no other job has a word in where it goes, and it has gone nowhere for
    the sake of its size lately. `changed_ms`: when it last did, 0: never; None: it may not."""
    if changed_ms is None or job.stays or job.affinity.beside or job.affinity.apart:
        return False
    return not changed_ms or not 0 <= now_ms - changed_ms < AGAIN_MS


def growth_of(
    board: Board, job: JobView, run: ElasticRun, profile: SpeedProfile | None, remaining_s: float, now_ms: int,
    idle: Sequence[NodeView] = (),
) -> DeadlineGrowth | None:  # fmt: skip
    """The machine on which a job is in time that would miss its deadline where it is: one of `idle`, which are there,
    or one on offer. None where it would not, or there is none."""
    node = board.nodes.get(run.node_id)
    if run.due_ms is None or node is None:
        return None
    price = node.price_per_hour.micros * run.held.wanted // max(1, node.gpu_count)
    sizes = range(run.held.wanted + 1, run.own + 1)
    there = (one for one, _node in _idle_for(board, idle, job, node, sizes))
    larger = chain(there, (one for one, _offer in sized_machines(job, node, sizes, (board.own, board.serverful))))
    known = profile or SpeedProfile(run.asked)
    return grow_for_deadline(known, run.held.wanted, remaining_s, (run.due_ms - now_ms) / 1000, price, larger)


def is_tight(job: JobView, now_ms: int) -> bool:
    """Whether a job that has not begun is not surely in time with the GPUs that it needs."""
    return job.total_run_ms is not None and job.total_run_ms * SPARE > job.deadline_ms - now_ms


def first_kind(board: Board, job: JobView) -> str | None:
    """The kind of GPU that a job would begin on with what it needs, by price; None where there is none."""
    least = job.resources.gpus_min
    choices = (market.of_sizes(job, (least,)).get(least) for market in _markets(board))
    return next((one.offer.gpu_type for one in choices if one is not None), None)


def start_of(board: Board, job: JobView, profile: SpeedProfile, now_ms: int) -> DeadlineGrowth | None:
    """The machine on which a job that has not begun is in time, where it is not with the GPUs that it needs: with a
    quarter to spare if that can be had. None where it is in time so, or late everywhere, or where nothing is predicted
    of it. One that takes longer to come than a job waits for its larger machine is not looked at. How late it is is
    told as predicted, without what is to spare."""
    if job.total_run_ms is None or not is_tight(job, now_ms):
        return None
    least, total_s, left_s = job.resources.gpus_min, job.total_run_ms / 1000, (job.deadline_ms - now_ms) / 1000
    machines = list(_machines(job, range(least, job.resources.gpus_max + 1), _markets(board)))
    prices = [one.micros_per_h for one, _offer in machines if one.gpus == least]
    larger = [one for one, offer in machines if one.gpus > least and offer.startup_ms <= PATIENCE_MS]
    for spare in (SPARE, 1.0):
        found = grow_for_deadline(profile, least, spare * total_s, left_s, min(prices, default=0), larger, save_s=0)
        if found is not None:
            gain = profile.speed(found.to.gpus) / profile.speed(least)
            early_s = left_s - found.to.arrival_s - total_s / gain
            return DeadlineGrowth(found.to, late_s=total_s - left_s, early_s=early_s)
    return None


def _markets(board: Board) -> tuple[Market, ...]:
    """Where a job may begin."""
    return board.own, board.serverful, board.serverless


def change_of(seen: SeenRanges, job: JobView, run: ElasticRun, remaining_s: float, now_ms: int) -> PlannedChange | None:
    """Where the job goes though no deadline asks for it: to a smaller machine, or a larger one that nobody waits
    for."""
    node = seen.board.nodes.get(run.node_id)
    if node is None or not _may_be_moved(seen.board, job, now_ms):
        return None
    profile = seen.profiles.get(run.run_id) or SpeedProfile(run.asked)
    smaller = _smaller(seen, job, node, run, profile, remaining_s, now_ms)
    if smaller is not None or seen.is_crowded:
        return smaller
    return _larger(seen, job, node, run, profile, remaining_s)


def sized_machines(
    job: JobView, node: NodeView, sizes: Sequence[int], markets: Sequence[Market]
) -> Iterator[tuple[SizedMachine, Offer]]:
    """The machine that would be had for each of these numbers of GPUs, on the kind of GPU that the job has: what was
    measured is of that."""
    of_kind = replace(job, resources=replace(job.resources, gpu_type=node.gpu_type))
    return _machines(of_kind, sizes, markets)


def _machines(job: JobView, sizes: Sequence[int], markets: Sequence[Market]) -> Iterator[tuple[SizedMachine, Offer]]:
    found = [market.of_sizes(job, sizes) for market in markets]
    for gpus in sizes:
        for choice in (of_market[gpus] for of_market in found if gpus in of_market):
            if choice.can_be_had:
                offer = choice.offer  # which is paid whole, also where it has more GPUs than the job would
                arrival_s = (offer.startup_ms + offer.arrival_ms) / 1000
                yield SizedMachine(gpus, offer.price_per_hour.micros, arrival_s), offer


def without_rivals(changes: Sequence[PlannedChange]) -> list[PlannedChange]:
    """One for each place: what two would take is decided anew once the first has it."""
    taken: set[tuple[str, str]] = set()
    found = []
    for one in changes:
        place = _place_of(one.move)
        if place not in taken:
            found.append(one)
        taken.add(place)
    return found


def _place_of(move: MoveOut | Migrate) -> tuple[str, str]:
    if isinstance(move, Migrate):
        return "", move.node_id
    return move.offer.provider, move.offer.host or move.offer.key


def _is_rented(node: NodeView) -> bool:
    return node.tier in SERVERFUL_TIERS and node.tier is not Tier.OWN


def _may_be_moved(board: Board, job: JobView, now_ms: int) -> bool:
    is_free = job.not_before_ms <= now_ms and job.not_moved_before_ms <= now_ms
    return is_free and not job.leaving and not board.is_moving(job.job_id) and job.resources.nodes == 1


def _smaller(
    seen: SeenRanges, job: JobView, node: NodeView, run: ElasticRun, profile: SpeedProfile, remaining_s: float,
    now_ms: int,
) -> PlannedChange | None:  # fmt: skip
    """From a rented machine that it has for itself alone: that is what is given back."""
    if not _is_rented(node) or len(seen.board.runs_on(node.node_id)) != 1:
        return None
    smaller = range(run.least, run.held.wanted)
    found: dict[SizedMachine, Offer | NodeView] = dict(_idle_for(seen.board, seen.idle, job, node, smaller))
    if seen.may_rent:
        offered = sized_machines(job, node, smaller, (seen.board.own, seen.board.serverful))
        found |= {one: offer for one, offer in offered if not (seen.is_crowded and offer.tier is Tier.OWN)}
    now = SizedMachine(run.held.wanted, node.price_per_hour.micros, 0.0)
    left_s = None if run.due_ms is None else (run.due_ms - now_ms) / 1000
    best = smaller_machine(profile, now, remaining_s, left_s, seen.times, found)
    if best is None:
        return None
    in_time = "is in time with less" if left_s is not None else "costs less with fewer GPUs"
    told = (
        f"{in_time}: moves from {_gpus(run.held.wanted)} to {_which(found[best.to])} with {best.to.gpus}, where what "
        f"is left costs about {Money(best.saved_micros)} less"
    )
    return _planned(seen.board, job, run, SMALLER, best.to.gpus, found[best.to], told)


def _idle_for(
    board: Board, idle: Sequence[NodeView], job: JobView, node: NodeView, sizes: range
) -> Iterator[tuple[SizedMachine, NodeView]]:
    """Machines of the job's project that are there already, of the kind of GPU that it has, and of these sizes: it
    would pay them whole."""
    for one in reversed(idle):  # of two that are alike the first is taken
        if one.gpu_count not in sizes or one.project_id != job.project_id:
            continue
        need = replace(job.resources, gpus_min=one.gpu_count, gpu_type=node.gpu_type)
        place = Fleet(board).place_on(one)
        if one.node_id != node.node_id and place.takes(replace(job, resources=need)):
            yield SizedMachine(one.gpu_count, one.price_per_hour.micros, 0.0), one


def _larger(
    seen: SeenRanges, job: JobView, node: NodeView, run: ElasticRun, profile: SpeedProfile, remaining_s: float
) -> PlannedChange | None:
    found = dict(sized_machines(job, node, range(run.held.wanted + 1, run.own + 1), (seen.board.own,)))
    best = larger_machine(profile, run.held.wanted, remaining_s, seen.times, found)
    if best is None:
        return None
    told = (
        f"nobody waits for GPUs of its pool: moves from {_gpus(run.held.wanted)} to {best.to.gpus} there, and is done "
        f"about {duration(int(best.sooner_s) * 1000)} sooner"
    )
    return _planned(seen.board, job, run, LARGER, best.to.gpus, found[best.to], told)


def _planned(
    board: Board, job: JobView, run: ElasticRun, kind: str, gpus: int, to: Offer | NodeView, told: str
) -> PlannedChange | None:
    view = board.runs.get(run.run_id)
    if view is None:
        return None
    indices, versions = tuple(range(gpus)), [(job.job_id, job.row_version), (view.run_id, view.row_version)]
    move: MoveOut | Migrate
    if isinstance(to, NodeView):
        versions.append((to.node_id, to.row_version))
        move = Migrate(job.job_id, run.run_id, to.node_id, indices, told, tuple(sorted(versions)))
    else:
        move = MoveOut(job.job_id, run.run_id, to, indices, told, tuple(sorted(versions)))
    return PlannedChange(run, gpus, kind, move)


def _which(to: Offer | NodeView) -> str:
    return "an idle machine" if isinstance(to, NodeView) else "a machine"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"
