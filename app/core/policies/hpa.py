"""`hpa` and `hpa-conventional`: Kubernetes' Horizontal Pod Autoscaler over rented nodes, at a target of 70 %.

Jobs wait in one queue for rented nodes, in order of arrival. Every 15 seconds the number of nodes is set to
ceil(nodes x utilisation / 0.7); it falls only to the highest figure of the last five minutes (the autoscaler's default
stabilisation window), and to none only where no job is left. Where no node is in use or coming there is no utilisation
to go by: one more is rented as soon as a job waits that none holds, and at the limit those that hold nobody are given
back for it. A job that has waited for its `max_wait` has one rented at once. The two differ in what they rent: the
cheapest offer of any kind, or conventional nodes only. Machines of one's own are taken as others are, count for
nothing, and are given back at once.
"""

from __future__ import annotations

from app.core.board import Board
from app.core.market import Market
from app.core.model.node import SERVERFUL_TIERS, Tier
from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import JobView
from app.core.policies.plan_builder import PlanBuilder
from app.core.policy import PolicyConfig, PolicyState

TARGET_PERCENT = 70
SYNC_TICKS = 0.25  # of a control tick: 15 s of 60
STABLE_TICKS = 5.0
_FIGURE = "figure_at_"


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
        nodes = desk.board.serverful_nodes
        idle = [node for node in desk.fleet.unneeded() if node.tier != Tier.OWN]
        coming = sum(node.tier != Tier.OWN for node in desk.board.all_coming())
        busy = nodes - coming - len(idle)
        ready = nodes - coming
        stalled = bool(waiting) and busy == coming == 0
        needed = max(1, -(-busy * 100 // TARGET_PERCENT)) if nodes and desk.board.jobs else 0
        wanted = nodes + 1 if stalled else needed
        state, high = _highest_lately(state, wanted, desk.now_ms, int(desk.config.tick_ms * STABLE_TICKS))
        share = f"{100 * busy // max(1, ready)} % of {ready} nodes are in use, {TARGET_PERCENT} % are wanted"
        for number in range(min(wanted - nodes, len(waiting))):
            desk.provision(waiting[number], share)
        if desk.outlook.may(ActionKind.RELEASE):
            kept = 0 if stalled and desk.outlook.fleet_is_full() else max(1 if waiting else 0, high)
            for node in idle[: max(0, nodes - kept)]:
                desk.release(node, f"it is idle, and {share}")
        return state.having(wanted=float(wanted))


class HpaConventional(Hpa):
    """See the module."""

    name = "hpa-conventional"
    tiers = (Tier.CONVENTIONAL,)


def _arrival(job: JobView) -> tuple[int, str]:
    return job.submitted_ms, job.job_id


def _highest_lately(state: PolicyState, wanted: int, now_ms: int, span_ms: int) -> tuple[PolicyState, int]:
    """The highest figure of the span that ends now, and the state with those that may yet be it."""
    values = dict(state.values)
    figures = {int(name.removeprefix(_FIGURE)): values.pop(name) for name in list(values) if name.startswith(_FIGURE)}
    kept = {at_ms: figure for at_ms, figure in figures.items() if at_ms >= now_ms - span_ms and figure > wanted}
    kept[now_ms] = float(wanted)
    named = {f"{_FIGURE}{at_ms}": figure for at_ms, figure in kept.items()}
    return PolicyState(()).having(**values, **named), int(max(kept.values()))
