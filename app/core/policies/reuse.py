"""Rule 6 of `allpass`: how many free nodes are worth their price, from what they would have saved lately."""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.core.model.node import NodeState
from app.core.model.plan import ActionKind
from app.core.model.snapshot import JobView, NodeView
from app.core.policies.desk import Desk
from app.core.policy import PolicyState
from app.core.remaining import remaining_ms


@dataclass(frozen=True, slots=True)
class Flow:
    """What free nodes would have saved lately, in micro-dollars per hour, falling by half every `half_life_ms`."""

    micros_per_hour: float
    half_life_ms: int

    def lasts_ms(self, price_micros: int) -> int:
        """For how long from now it exceeds a price, if no more jobs come."""
        if self.micros_per_hour <= price_micros:
            return 0
        return int(self.half_life_ms * math.log2(self.micros_per_hour / price_micros))


def reuse_flow(desk: Desk, state: PolicyState) -> tuple[PolicyState, Flow]:
    """Every job that arrives adds what a free node would have saved on it."""
    half_life_ms = desk.config.rules.reuse_half_life_ms
    seen_ms, flow = state.get("seen_ms", -1.0), state.get("reuse", 0.0)
    if seen_ms >= 0:
        flow *= 0.5 ** ((desk.now_ms - seen_ms) / half_life_ms)
    hours = half_life_ms / math.log(2) / 3_600_000
    for job in desk.board.queued_after(int(seen_ms)):
        flow += _reuse_saves(desk, job) / hours
    return state.having(seen_ms=float(desk.now_ms), reuse=flow), Flow(flow, half_life_ms)


def _reuse_saves(desk: Desk, job: JobView) -> float:
    """Micro-dollars that a job saves by starting on a free node: the serverless premium, up to what a move costs."""
    serverless, serverful = desk.outlook.serverless.choose(job), desk.outlook.serverful.choose(job)
    if serverless is None or serverful is None or desk.is_patient(job):
        return 0.0
    dear, cheap = serverless.offer.price_per_hour.micros, serverful.offer.price_per_hour.micros
    wait_ms = serverful.offer.startup_ms + desk.config.moves.save_ms
    premium = (dear - cheap) * (remaining_ms(job, None, desk.now_ms) if job.total_run_ms is not None else wait_ms)
    move = (dear - cheap) * wait_ms + cheap * desk.config.moves.load_ms
    return max(0.0, min(premium, move) + dear * serverless.offer.startup_ms) / 3_600_000


def size_pool(desk: Desk, flow: Flow) -> None:
    """Rule 6: of the free nodes, ready ones before those that boot and cheap ones first, the k-th is used once k
    jobs have come; so it is worth its price while what free nodes save per hour is more than k times that."""
    ready, coming = desk.fleet.unneeded()[::-1], desk.fleet.unneeded_coming()[::-1]
    for rank, node in enumerate((*ready, *coming), start=1):
        _release_or_keep(desk, node, rank, flow)
    _rent_ahead(desk, len(ready) + len(coming), flow)


def _release_or_keep(desk: Desk, node: NodeView, rank: int, flow: Flow) -> None:
    keep_ms = flow.lasts_ms(node.price_per_hour.micros * rank)
    if node.idle_since_ms is not None:
        keep_ms = min(keep_ms, node.idle_since_ms + desk.config.rules.warm_most_ms - desk.now_ms)
    if keep_ms > 0:
        desk.wake(desk.now_ms + keep_ms)
    elif desk.outlook.may(ActionKind.RELEASE) and (node.state != NodeState.READY or node.idle_since_ms is not None):
        desk.release(node, "no job needs it, and jobs that could use it come too seldom to keep it")


def _rent_ahead(desk: Desk, free: int, flow: Flow) -> None:
    """For the jobs to come, in the name of the newest that came now."""
    newest = max(desk.arrived(), key=lambda job: (job.submitted_ms, job.job_id), default=None)
    choice = None if newest is None else desk.outlook.serverful.choose(newest)
    if newest is None or choice is None:
        return
    worth = desk.config.rules.ahead_gain * choice.offer.price_per_hour.micros
    if flow.micros_per_hour > worth * (free + 1):
        desk.provision(newest, "jobs come so often that the next ones will use it", reserve=False)
