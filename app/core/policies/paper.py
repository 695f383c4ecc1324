"""`allpass-paper` and `allpass-drain`: the two scalers of the Allpass paper on one pressure signal.

Every job starts serverless at once. After F of running there it saves, leaves, and waits in a queue, earliest
deadline first, for a rented node. At each tick the pressure moves F (Algorithm 1) and the number of nodes
(Algorithm 2, scale-in mended to the surplus). Between ticks, nodes that are there are given out.

`allpass-paper` does only that. Simulating it shows what follows: a long job enters D only when its deadline is within
the horizon, so that it waits for hours; one overdue job of ten hours asks for twenty nodes although it can use one;
and pressure at a short window without a shortfall at the horizon rents nothing while F climbs to its bound. With jobs
of several GPUs, a node that is too small for all that wait counts as capacity, so that a job may wait for ever.
`allpass-drain` adds one rule that mends it: at each tick a node is rented for every queued job that no idle or coming
node covers. It is the baseline that an improvement has to beat.

The paper's jobs may have any node. What was bid for, or is lent, some jobs may not have (`app.core.spot_places`): so
the work of those is held against the nodes that they may have, too, and the pressure is the highest of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat

from app.core import queue
from app.core.board import Board
from app.core.demand import Pressure, pressure_of_sorted
from app.core.fleet import resize
from app.core.model.job import JobState
from app.core.model.node import Tier
from app.core.model.plan import STOP_AND_GO, ActionKind, Plan
from app.core.model.snapshot import JobView
from app.core.policies import reasons
from app.core.policies.fixed_threshold import Threshold
from app.core.policies.plan_builder import PlanBuilder
from app.core.policy import PolicyConfig, PolicyState
from app.core.spot_places import NUMBER_OF_LEVELS, level_of_job, level_of_place
from app.core.tiers import next_budget_ms

_ALL = NUMBER_OF_LEVELS - 1
_BESIDE = (" beside what is lent or was bid for", " beside what was bid for", "")  # by level
_SIGNALS = ("p_guaranteed", "p_without_bids")


class Paper:
    """See the module. Remembers F, and when the last tick was."""

    name = "allpass-paper"
    uses = STOP_AND_GO
    moves_by_budget = False  # F follows the pressure
    drains = False

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        desk = PlanBuilder(board, config)
        budget_ms = state.get("F_ms", config.budget.first_ms)
        ticked_ms = state.get("ticked_ms", -1.0)
        is_tick = ticked_ms < 0 or board.now_ms >= ticked_ms + config.tick_ms
        found: list[ClassDemand] = []
        if is_tick:
            ticked_ms = float(board.now_ms)
            found = class_demands(board, config)
            budget_ms = next_budget_ms(config.budget, budget_ms, highest(found))
        Threshold(desk, int(budget_ms), rents=False, returns=False).serve()
        if is_tick:
            self._resize(desk, found)
        desk.release_own()
        desk.wake(int(ticked_ms) + config.tick_ms)  # also where there is nothing: F falls while nothing is pressing
        plan = desk.plan(self.name, F_s=budget_ms / 1000, **signals_of(found))
        return plan, state.having(F_ms=budget_ms, ticked_ms=ticked_ms)

    def _resize(self, desk: PlanBuilder, found: list[ClassDemand]) -> None:
        """Algorithm 2, which gives nothing back while p is above 1; and the drain rule. First for jobs that may not
        have all nodes, so that what is rented for these counts for the others, too."""
        minutes = desk.config.horizon_ms // 60_000
        rented: set[str] = set()
        more_gpus = 0
        fewer: dict[int, int] = {}
        for one in found:
            change = resize(one.seen.demand_gpu_ms, one.capacity + more_gpus, desk.config.horizon_ms)
            beside = _BESIDE[one.level]
            why = f"the work due within {minutes} min asks for {change.more} GPUs more than there are{beside}"
            names, gpus = _rent_for_demand(desk, change.more, why, one.level)
            rented |= names
            more_gpus += gpus
            fewer[one.level] = change.fewer
        crowded_out = self._drain(desk, rented) if self.drains else 0
        if crowded_out:
            _make_room(desk, crowded_out)
        elif any(fewer.values()) and not rented and highest(found) <= 1:
            _release_surplus(desk, fewer)

    def _drain(self, desk: PlanBuilder, rented: set[str]) -> int:
        """Rent for who waits and is not covered; returns for how many no more nodes may be rented."""
        crowded_out = 0
        for job in desk.board.placeable():
            if job.job_id not in rented and desk.wants_node(job) and desk.keep_room(job) is None:
                rents = desk.provision(job, "no idle or coming node covers the job")
                crowded_out += not rents and desk.outlook.serverful.choose(job) is not None
        return crowded_out


class Drain(Paper):
    """See the module."""

    name = "allpass-drain"
    drains = True


def pressure_now(board: Board, config: PolicyConfig, capacity: float, level: int = _ALL) -> Pressure:
    """p over all unfinished jobs of the board that may run, or those up to a level."""
    due_by_ms = board.now_ms + config.horizon_ms
    deadlines_ms, left_gpu_ms = board.columns.demand(board.now_ms, due_by_ms, None if level == _ALL else level)
    return pressure_of_sorted(
        deadlines_ms,
        left_gpu_ms,
        board.now_ms,
        capacity=capacity,
        horizon_ms=config.horizon_ms,
        least_window_ms=min(config.tick_ms, config.horizon_ms),
    )


@dataclass(frozen=True, slots=True)
class ClassDemand:
    """The work of jobs up to a level, against the nodes that all of these may have."""

    level: int
    capacity: float  # C: GPU-milliseconds of work per millisecond of these nodes, those that boot included
    seen: Pressure


def class_demands(board: Board, config: PolicyConfig) -> list[ClassDemand]:
    """Of all jobs against all nodes, which comes last; before that of those for which some of the nodes are none.

    Who may have a place of some level may have those below it, too. So there is a way to do all the work in time on the
    whole exactly where there is one at each of the levels: Hall's condition, of sets that contain each other.
    """
    rented = board.rented_of_level
    levels = [level for level in range(_ALL) if rented[level + 1]]
    found = []
    for level in [*levels, _ALL]:
        capacity = float(sum(rented[: level + 1]))
        found.append(ClassDemand(level, capacity, pressure_now(board, config, capacity, level)))
    return found


def highest(found: list[ClassDemand]) -> float:
    """p: where it is highest, some deadline cannot be kept."""
    return max((one.seen.p for one in found), default=0.0)


def signals_of(found: list[ClassDemand]) -> dict[str, float]:
    """What is told of a tick; C and D are of all jobs and nodes."""
    if not found:
        return {}
    last = found[-1]
    signals = {"p": highest(found), "C": last.capacity, "D_gpu_s": last.seen.demand_gpu_ms / 1000}
    return signals | {_SIGNALS[one.level]: one.seen.p for one in found[:-1]}


def _rent_for_demand(desk: PlanBuilder, count: int, why: str, level: int) -> tuple[set[str], int]:
    """Rent nodes of so many GPUs, in the name of the jobs up to this level that need one most; returns those jobs, and
    the GPUs.

    First those that wait, then those that would have to leave serverless; where there are more nodes to rent than
    such jobs, the first job gives its name again: the literal algorithm does not ask who could use them.
    """
    if count <= 0:
        return set(), 0
    waiting = [job for job in desk.board.placeable() if level_of_job(job) <= level and desk.wants_node(job)]
    riders = [job for run in desk.board.serverless_runs.values() for job in _jobs_of(desk, run.job_ids)]
    riders = [job for job in riders if level_of_job(job) <= level and not queue.has_spent_all(job)]
    running = (job for job in desk.board.jobs.values() if job.state == JobState.RUNNING)
    rest = [job for job in running if level_of_job(job) <= level and not queue.has_spent_all(job)]
    names = waiting + sorted(riders, key=queue.edf_key) or sorted(rest, key=queue.edf_key)
    rented: set[str] = set()
    gpus = 0
    for job in chain(names, repeat(names[0])) if names else ():
        choice = desk.outlook.serverful.choose(job)
        if count <= 0 or choice is None or not desk.provision(job, why):
            break
        count -= choice.offer.gpu_count
        gpus += choice.offer.gpu_count
        rented.add(job.job_id)
    return rented, gpus


def _jobs_of(desk: PlanBuilder, job_ids: tuple[str, ...]) -> list[JobView]:
    return [desk.board.jobs[job_id] for job_id in job_ids if job_id in desk.board.jobs]


def _make_room(desk: PlanBuilder, most: int) -> None:
    """At the limit, nodes that are too small for all that wait make room for larger ones."""
    if desk.outlook.may(ActionKind.RELEASE):
        for node in [one for one in desk.fleet.unneeded() if one.tier != Tier.OWN][:most]:
            desk.release(node, f"it holds none of the jobs that wait ({most}), and no more nodes may be rented")


def _release_surplus(desk: PlanBuilder, most: dict[int, int]) -> None:
    """`most`: so many GPUs by level; a node counts for its own and all above it."""
    if not desk.outlook.may(ActionKind.RELEASE):
        return
    span = reasons.duration(desk.config.horizon_ms)
    left = dict(most)
    for node in desk.fleet.unneeded():
        counts = [level for level in left if level >= level_of_place(node)]
        if node.tier != Tier.OWN and node.gpu_count <= min(left[level] for level in counts):
            spare = min(most[level] for level in counts)
            for level in counts:
                left[level] -= node.gpu_count
            desk.release(node, f"it is idle, and {spare} GPUs are more than the work due within {span} asks for")
