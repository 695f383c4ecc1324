"""`hpa` and `hpa-conventional`: Kubernetes' Horizontal Pod Autoscaler over rented nodes, at a target of 70 %.

Jobs wait in one queue for rented nodes, in order of arrival. Every 15 seconds the number of nodes is set to
ceil(nodes x utilisation / 0.7); it falls only to the highest figure of the last five minutes (the autoscaler's default
stabilisation window), and to none only where no job is left. Where no node is in use or coming there is no utilisation
to go by: one more is rented as soon as a job waits that none holds, and at the limit those that hold nobody are given
back for it. A job that has waited for its `max_wait` has one rented at once. The two differ in what they rent: the
cheapest offer of any kind, or conventional nodes only. Machines of one's own are taken as others are, count for
nothing, and are given back at once. Nodes that were bid for are no use to some jobs: where there are any, the others
are sized for these jobs by themselves, and then all nodes for all jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.board import Board
from app.core.market import Market
from app.core.model.node import SERVERFUL_TIERS, Tier
from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import JobView, NodeView
from app.core.policies.plan_builder import PlanBuilder
from app.core.policy import PolicyConfig, PolicyState
from app.core.spot_places import may_be_interrupted

TARGET_PERCENT = 70
SYNC_TICKS = 0.25  # of a control tick: 15 s of 60
STABLE_TICKS = 5.0
_FIGURE = "figure_at_"
_FIGURE_WITHOUT_BIDS = "figure_without_bids_at_"


class Hpa:
    """See the module. Remembers the last synchronisation, and the figures lately that no later one exceeds."""

    name = "hpa"
    uses = frozenset({ActionKind.ASSIGN, ActionKind.PROVISION, ActionKind.RELEASE})
    moves_by_budget = False
    tiers: tuple[Tier, ...] = SERVERFUL_TIERS

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        desk = PlanBuilder(board, config)
        if self.tiers != SERVERFUL_TIERS:
            desk.outlook.serverful = Market(board.offers, self.tiers, board.traits, board.images)
        waiting = [job for job in board.in_turn(sorted(board.placeable(), key=_arrival)) if self._place(desk, job)]
        sync_ms = int(config.tick_ms * SYNC_TICKS)
        synced_ms = state.get("synced_ms", -1.0)
        if synced_ms < 0 or board.now_ms >= synced_ms + sync_ms:
            state = self._resize(desk, waiting, state.having(synced_ms=float(board.now_ms)))
            synced_ms = float(board.now_ms)
        desk.release_own()
        if board.jobs or board.serverful_nodes:
            desk.wake(int(synced_ms) + sync_ms)
        return desk.plan(self.name, nodes_wanted=state.get("wanted", 0.0)), state

    def _place(self, desk: PlanBuilder, job: JobView) -> bool:
        """Give the job a ready node; True if it has to wait for one."""
        if desk.holds_back(job):
            return False
        place = desk.ready_place(job)
        if place is not None:
            desk.assign(job, place)
        elif desk.has_waited_enough(job) and desk.outlook.serverful_possible(job):
            desk.place_serverful(job)
        elif not desk.outlook.serverful_possible(job):
            desk.wait(job, desk.outlook.nothing_serverful(job))
        else:
            desk.hold_open(job)
            return True
        return False

    def _resize(self, desk: PlanBuilder, waiting: list[JobView], state: PolicyState) -> PolicyState:
        idle = [node for node in desk.fleet.unneeded() if node.tier != Tier.OWN]
        coming = [node for node in desk.board.all_coming() if node.tier != Tier.OWN]
        every = _Group(desk.board.serverful_nodes, len(coming), len(idle), waiting, bool(desk.board.jobs))
        state, kept = _kept(desk, every, state, _FIGURE)
        kept_for_others, rented = 0, set[str]()
        bids = sum(node.interruptible for node in desk.board.nodes.values())
        others = every.without(
            bids, sum(node.interruptible for node in coming), sum(node.interruptible for node in idle)
        )
        if bids:
            state, kept_for_others = _kept(desk, others, state, _FIGURE_WITHOUT_BIDS)
            rented = _rent(desk, others.waiting[: max(0, others.missing)], others)
            kept = 0 if others.is_stalled and desk.outlook.fleet_is_full() else kept
        left = [job for job in waiting if job.job_id not in rented]
        _rent(desk, left[: max(0, every.missing - len(rented))], every)
        if desk.outlook.may(ActionKind.RELEASE):
            most, of_others = every.nodes - kept, others.nodes - kept_for_others
            _give_back(desk, idle, every, most, of_others if bids else most)
        return state.having(wanted=float(every.wanted))


class HpaConventional(Hpa):
    """See the module."""

    name = "hpa-conventional"
    tiers = (Tier.CONVENTIONAL,)


@dataclass(frozen=True, slots=True)
class _Group:
    """Rented nodes, those of them that come and that are idle, and the jobs that may have them and wait."""

    nodes: int
    coming: int
    idle: int
    waiting: list[JobView]
    has_jobs: bool

    @property
    def busy(self) -> int:
        return self.nodes - self.coming - self.idle

    @property
    def is_stalled(self) -> bool:
        return bool(self.waiting) and self.busy == self.coming == 0

    @property
    def wanted(self) -> int:
        needed = max(1, -(-self.busy * 100 // TARGET_PERCENT)) if self.nodes and self.has_jobs else 0
        return self.nodes + 1 if self.is_stalled else needed

    @property
    def missing(self) -> int:
        return self.wanted - self.nodes

    @property
    def share(self) -> str:
        ready = self.nodes - self.coming
        return f"{100 * self.busy // max(1, ready)} % of {ready} nodes are in use, {TARGET_PERCENT} % are wanted"

    def without(self, bids: int, coming: int, idle: int) -> _Group:
        """The nodes that were not bid for, and the jobs that may have no others."""
        waiting = [job for job in self.waiting if not may_be_interrupted(job)]
        return _Group(self.nodes - bids, self.coming - coming, self.idle - idle, waiting, self.has_jobs)


def _kept(desk: PlanBuilder, group: _Group, state: PolicyState, figure: str) -> tuple[PolicyState, int]:
    """How many of its nodes stay, and the state with its figure."""
    span_ms = int(desk.config.tick_ms * STABLE_TICKS)
    state, high = _highest_lately(state, group.wanted, desk.now_ms, span_ms, figure)
    makes_room = group.is_stalled and desk.outlook.fleet_is_full()
    return state, 0 if makes_room else max(1 if group.waiting else 0, high)


def _rent(desk: PlanBuilder, line: list[JobView], group: _Group) -> set[str]:
    """Those for which a node is rented."""
    return {job.job_id for job in line if desk.provision(job, group.share)}


def _give_back(desk: PlanBuilder, idle: list[NodeView], group: _Group, most: int, of_others: int) -> None:
    """So many of them, and of those that were not bid for at most `of_others`."""
    for node in idle:
        if most <= 0 or (of_others <= 0 and not node.interruptible):
            continue
        most, of_others = most - 1, of_others - (not node.interruptible)
        desk.release(node, f"it is idle, and {group.share}")


def _arrival(job: JobView) -> tuple[int, str]:
    return job.submitted_ms, job.job_id


def _highest_lately(
    state: PolicyState, wanted: int, now_ms: int, span_ms: int, figure_at: str
) -> tuple[PolicyState, int]:
    """The highest figure of the span that ends now, and the state with those that may yet be it."""
    values = dict(state.values)
    names = [name for name in values if name.startswith(figure_at)]
    figures = {int(name.removeprefix(figure_at)): values.pop(name) for name in names}
    kept = {at_ms: figure for at_ms, figure in figures.items() if at_ms >= now_ms - span_ms and figure > wanted}
    kept[now_ms] = float(wanted)
    named = {f"{figure_at}{at_ms}": figure for at_ms, figure in kept.items()}
    return PolicyState(()).having(**values, **named), int(max(kept.values()))
