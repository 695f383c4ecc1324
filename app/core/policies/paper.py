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
"""

from __future__ import annotations

from itertools import chain, repeat

from app.core import queue
from app.core.board import Board
from app.core.demand import NO_PRESSURE, Pressure, pressure_of_sorted
from app.core.fleet import resize
from app.core.model.job import JobState
from app.core.model.node import Tier
from app.core.model.plan import STOP_AND_GO, ActionKind, Plan
from app.core.model.snapshot import JobView
from app.core.policies import reasons
from app.core.policies.fixed_threshold import Threshold
from app.core.policies.plan_builder import PlanBuilder
from app.core.policy import PolicyConfig, PolicyState
from app.core.tiers import next_budget_ms


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
        seen, capacity = NO_PRESSURE, 0.0
        if is_tick:
            ticked_ms = float(board.now_ms)
            capacity = rented_rate(board)
            seen = pressure_now(board, config, capacity)
            budget_ms = next_budget_ms(config.budget, budget_ms, seen.p)
        Threshold(desk, int(budget_ms), rents=False, returns=False).serve()
        if is_tick:
            self._resize(desk, seen, capacity)
        desk.release_own()
        desk.wake(int(ticked_ms) + config.tick_ms)  # also where there is nothing: F falls while nothing is pressing
        signals = {"p": seen.p, "C": capacity, "D_gpu_s": seen.demand_gpu_ms / 1000} if is_tick else {}
        plan = desk.plan(self.name, F_s=budget_ms / 1000, **signals)
        return plan, state.having(F_ms=budget_ms, ticked_ms=ticked_ms)

    def _resize(self, desk: PlanBuilder, seen: Pressure, capacity: float) -> None:
        """Algorithm 2, which gives nothing back while p is above 1; and the drain rule."""
        change = resize(seen.demand_gpu_ms, capacity, desk.config.horizon_ms)
        minutes = desk.config.horizon_ms // 60_000
        why = f"the work due within {minutes} min asks for {change.more} GPUs more than there are"
        rented = _rent_for_demand(desk, change.more, why)
        crowded_out = self._drain(desk, rented) if self.drains else 0
        if crowded_out:
            _make_room(desk, crowded_out)
        elif change.fewer and not rented and seen.p <= 1:
            _release_surplus(desk, change.fewer)

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


def rented_rate(board: Board) -> float:
    """C: GPU-milliseconds of work per millisecond of the nodes that are rented, those that boot included."""
    return float(board.rented_gpus)


def pressure_now(board: Board, config: PolicyConfig, capacity: float) -> Pressure:
    """p over all unfinished jobs of the board that may run."""
    deadlines_ms, left_gpu_ms = board.columns.demand(board.now_ms, board.now_ms + config.horizon_ms)
    return pressure_of_sorted(
        deadlines_ms,
        left_gpu_ms,
        board.now_ms,
        capacity=capacity,
        horizon_ms=config.horizon_ms,
        least_window_ms=min(config.tick_ms, config.horizon_ms),
    )


def _rent_for_demand(desk: PlanBuilder, count: int, why: str) -> set[str]:
    """Rent nodes of so many GPUs, in the name of the jobs that need one most; returns those jobs.

    First those that wait, then those that would have to leave serverless; where there are more nodes to rent than
    such jobs, the first job gives its name again: the literal algorithm does not ask who could use them.
    """
    if count <= 0:
        return set()
    waiting = [job for job in desk.board.placeable() if desk.wants_node(job)]
    riders = [job for run in desk.board.serverless_runs.values() for job in _jobs_of(desk, run.job_ids)]
    riders = [job for job in riders if not queue.has_spent_all(job)]
    running = (job for job in desk.board.jobs.values() if job.state == JobState.RUNNING)
    rest = [job for job in running if not queue.has_spent_all(job)]
    names = waiting + sorted(riders, key=queue.edf_key) or sorted(rest, key=queue.edf_key)
    rented: set[str] = set()
    for job in chain(names, repeat(names[0])) if names else ():
        choice = desk.outlook.serverful.choose(job)
        if count <= 0 or choice is None or not desk.provision(job, why):
            break
        count -= choice.offer.gpu_count
        rented.add(job.job_id)
    return rented


def _jobs_of(desk: PlanBuilder, job_ids: tuple[str, ...]) -> list[JobView]:
    return [desk.board.jobs[job_id] for job_id in job_ids if job_id in desk.board.jobs]


def _make_room(desk: PlanBuilder, most: int) -> None:
    """At the limit, nodes that are too small for all that wait make room for larger ones."""
    if desk.outlook.may(ActionKind.RELEASE):
        for node in [one for one in desk.fleet.unneeded() if one.tier != Tier.OWN][:most]:
            desk.release(node, f"it holds none of the jobs that wait ({most}), and no more nodes may be rented")


def _release_surplus(desk: PlanBuilder, most: int) -> None:
    if not desk.outlook.may(ActionKind.RELEASE):
        return
    span = reasons.duration(desk.config.horizon_ms)
    left = most
    for node in desk.fleet.unneeded():
        if node.gpu_count <= left and node.tier != Tier.OWN:
            left -= node.gpu_count
            desk.release(node, f"it is idle, and {most} GPUs are more than the work due within {span} asks for")
