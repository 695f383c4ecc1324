"""A simulation with machines of a team's own: hosts that join, drain, fail and return, and nodes that end with them.

Runs leave a node whose end is known as they do live: `app.core.leaving` chooses where to while there is time
(`app.control.lifetimes`), and what has found no place saves in time and waits. Of a host that fails nobody is told: its
nodes are unreachable at first, it is offered no more once it has been silent for a while, and its jobs go elsewhere
when it is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from app.core.leaving import EndingNode, ending_node, leave_ending
from app.core.lifecycle import NODE_TRANSITIONS, pass_over
from app.core.model.node import NodeState, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Action, ActionKind, Migrate, MoveOut, Plan, Provision, Start
from app.core.model.pool import JOINED
from app.core.model.run import RunPurpose, RunState
from app.core.pools import CLOSING_MS, STARTUP_MS
from app.simulator.cloud import Cloud
from app.simulator.engine import Event, Simulation
from app.simulator.lives import Life, SimulatedRun
from app.simulator.merging import MergingSimulation
from app.simulator.moving_out import MovesOut
from app.simulator.outcomes import SimulationResult
from app.simulator.own.cloud import OwnCloud, RoughOwnCloud
from app.simulator.own.fleet import OwnFleet, next_turn_ms
from app.simulator.own.machines import HostEvent
from app.simulator.scenario import BILLING, Scenario
from app.simulator.worlds.hosts import RoughCloud
from app.simulator.worlds.known import FRIENDLY
from app.simulator.worlds.rough import RoughSimulation, simulation_for

# As the service's settings are, where nobody sets them.
MARGIN_MS = 900_000  # so long before a node ends its runs leave
_PART_FOR_LEAVING = 4  # of a short life at most this part
_GRACE_MS = 60_000  # of a process that is asked to save
UNREACHABLE_AFTER_MS, SILENT_AFTER_MS, LOST_AFTER_MS = 30_000, 60_000, 150_000
_LOOKS_EVERY_MS = 30_000  # at nodes that end soon
_TRAITS = ProviderTraits(
    provider=JOINED,
    tier=Tier.OWN,
    billing=BILLING[Tier.OWN],
    startup_mean_ms=STARTUP_MS,
    startup_deadline_ms=60_000,
    create_grace_ms=5_000,
    dies_with_run=False,
    preemptible=True,
    takes_images=False,
)
LEAVING = "leaving"  # in the place of a policy's name, in the plans by which runs leave nodes that end


class WithPools(MovesOut):
    """See the module; to be put before what plays the rest. What is merged is played with hosts that stay."""

    def _make_cloud(self, scenario: Scenario) -> Cloud:
        cloud = OwnCloud(scenario)
        self.fleet: OwnFleet = cloud.fleet
        return cloud

    def run(self) -> SimulationResult:
        self._is_stale = False  # what is offered of one's own
        self._has_freed = False
        self._died_ms: dict[str, int] = {}  # by run, on a host that is dead and not given up yet
        own = self._scenario.own
        for event in () if own is None else own.events:
            self._at(event.at_ms, partial(self._befall, event))
        for name in self.fleet.pools:
            self._await_turn(name)
        return super().run()

    # What is offered

    def _offers(self) -> tuple[Offer, ...]:
        return (*super()._offers(), *self.fleet.offers(self._now_ms))

    def _traits(self) -> tuple[ProviderTraits, ...]:
        walltimes_ms = [one.walltime_ms for one in self.fleet.pools.values() if one.walltime_ms is not None]
        return (*super()._traits(), replace(_TRAITS, max_lifetime_ms=min(walltimes_ms, default=None)))

    def _is_there(self, offer: Offer) -> bool:
        return self.fleet.has(offer, self._now_ms) if offer.tier == Tier.OWN else super()._is_there(offer)

    def _supply_changed(self, tier: Tier) -> None:
        if tier == Tier.OWN:
            self._is_stale = True  # told with the next decision: many may change before it
        else:
            super()._supply_changed(tier)

    def _set_offers(self) -> None:
        self._is_stale = False
        super()._set_offers()

    def _decide(self) -> int | None:
        endings = self._leave_in_time()
        if self._is_stale:
            self._set_offers()
        self._has_freed = False
        wake_ms = super()._decide()
        if self._has_freed:  # by the plan itself: others may have it, and are asked at once
            return self._now_ms
        if endings:
            soon_ms = self._now_ms + _LOOKS_EVERY_MS
            return soon_ms if wake_ms is None else min(wake_ms, soon_ms)
        return wake_ms

    def _enact(self, action: Action) -> bool:
        if not super()._enact(action):
            self._is_stale = True  # asked again with what is left
            return False
        return True

    # Nodes come up

    def _await_start(self, action: Start | Provision | MoveOut, node_id: str, ready_ms: int, ready: Event) -> None:
        if action.offer.tier != Tier.OWN:
            super()._await_start(action, node_id, ready_ms, ready)
            return
        self._at(ready_ms, ready)
        self._plan_end(node_id)

    def _node_ready(self, node_id: str) -> None:
        if not self.fleet.is_dark(node_id):
            super()._node_ready(node_id)
            self._drain_if_near(node_id)

    def _serverless_ready(self, life: Life, run: SimulatedRun) -> None:
        if not self.fleet.is_dark(run.view.node_id):
            super()._serverless_ready(life, run)
            self._drain_if_near(run.view.node_id)

    # Nodes end

    def _plan_end(self, node_id: str) -> None:
        """It is looked at when it nears its end, and ends."""
        ends_ms = self.fleet.ends_ms(node_id, self._now_ms)
        if ends_ms is None:
            return
        near_ms = ends_ms - self._ahead_ms(node_id, ends_ms)
        self._at(max(self._now_ms, near_ms), lambda: self._drain_if_near(node_id))
        ending = self._ending(node_id, ends_ms)
        self._at(max(self._now_ms, ends_ms - ending.saving_ms), lambda: None)  # a decision
        self._at(max(self._now_ms, ends_ms), lambda: self._end_of_time(node_id))

    def _ahead_ms(self, node_id: str, ends_ms: int) -> int:
        slowest_ms = max(one.startup_mean_ms for one in self._board.traits) if self._board.traits else 0
        return self._margin_ms(node_id, ends_ms, MARGIN_MS + slowest_ms + self._config.moves.prepare_ms)

    def _ending(self, node_id: str, ends_ms: int) -> EndingNode:
        margin_ms = self._margin_ms(node_id, ends_ms, MARGIN_MS)
        save_ms = self._config.moves.save_ms + _GRACE_MS
        return ending_node(node_id, left_ms=ends_ms - self._now_ms, margin_ms=margin_ms, save_ms=save_ms)

    def _margin_ms(self, node_id: str, ends_ms: int, asked_ms: int) -> int:
        """So long before its end it is left: of a short life a part; where its owner wants it empty, since then."""
        drained_ms = self.fleet.drained_ms(node_id)
        if drained_ms is not None:
            return max(0, ends_ms - drained_ms)
        return min(asked_ms, (ends_ms - self._cloud.machines[node_id].view.requested_ms) // _PART_FOR_LEAVING)

    def _drain_if_near(self, node_id: str) -> None:
        """Nothing is placed there any more."""
        if node_id not in self.fleet.placed or self._cloud.machines[node_id].view.state != NodeState.READY:
            return
        ends_ms = self.fleet.ends_ms(node_id, self._now_ms)
        if ends_ms is not None and ends_ms - self._ahead_ms(node_id, ends_ms) <= self._now_ms:
            state = pass_over(NODE_TRANSITIONS, NodeState.READY, NodeState.DRAINING)
            self._board.put_node(self._cloud.change(node_id, state=state))

    def _end_of_time(self, node_id: str) -> None:
        if node_id in self.fleet.placed:
            ends_ms = self.fleet.ends_ms(node_id, self._now_ms)
            if ends_ms is not None and ends_ms <= self._now_ms:
                self._give_up_node(node_id)

    def _give_up_node(self, node_id: str) -> None:
        """It is gone with all that was not saved on it."""
        for view in self._board.runs_on(node_id):
            self._lose(self._runs[view.run_id])
        if node_id in self._cloud.machines:
            self._end_node(node_id, failed=True)

    def _end_node(self, node_id: str, *, failed: bool = False) -> None:
        self._has_freed |= node_id in self.fleet.placed
        super()._end_node(node_id, failed=failed)

    # Runs leave nodes that end, while there is time

    def _leave_in_time(self) -> bool:
        """Whether there are runs that have to leave."""
        endings = []
        for node_id in self._draining():
            ends_ms = self.fleet.ends_ms(node_id, self._now_ms)
            if ends_ms is None:
                continue
            ending = self._ending(node_id, ends_ms)
            self._leave_node(node_id, ending)
            if node_id in self.fleet.placed:
                endings.append(ending)
        if endings and ActionKind.MIGRATE in self._config.capabilities:
            self._begin_moves(endings)
        return bool(endings)

    def _draining(self) -> list[str]:
        machines = self._cloud.machines
        return [one for one in self.fleet.placed if machines[one].view.state == NodeState.DRAINING]

    def _leave_node(self, node_id: str, ending: EndingNode) -> None:
        for view in self._board.runs_on(node_id):
            run = self._runs[view.run_id]
            life = self._lives[view.job_ids[0]]
            if view.state == RunState.STANDBY:
                self._call_off(life, run)
            elif ending.left_ms <= ending.saving_ms and view.state == RunState.RUNNING:
                self._ask_to_save(life, run)
        if not self._board.is_occupied(node_id):
            self._end_node(node_id)

    def _ask_to_save(self, life: Life, run: SimulatedRun) -> None:
        """Who would lose all that it has done is not asked, and has what is left of the time."""
        if run.view.purpose != RunPurpose.TRAIN or life.view.has_never_saved:
            return
        if run.goes_on_to is not None and not run.goes_on_to.over:
            self._call_off(life, run.goes_on_to)
        self._send_back(life)

    def _begin_moves(self, endings: list[EndingNode]) -> None:
        if self._is_stale:
            self._set_offers()
        moves = leave_ending(self._board, self._config, endings)
        if moves and self._watch is not None:
            # What leaves a node is no policy's; whoever watches sees it as a plan all the same.
            self._watch(self._board, Plan(LEAVING, moves), self._state)  # type: ignore[arg-type]
        for move in moves:
            if isinstance(move, Migrate):
                self._migrate(move)
            else:
                self._move_out(move)

    def _await_target(self, action: MoveOut, node_id: str, ready_ms: int, ready: Event) -> None:
        super()._await_target(action, node_id, ready_ms, ready)
        if action.offer.tier == Tier.OWN:
            self._plan_end(node_id)

    def _is_dark(self, node_id: str) -> bool:
        return self.fleet.is_dark(node_id)

    # Hosts

    def _await_turn(self, name: str) -> None:
        """The hours of a pool begin or end."""
        turn_ms = next_turn_ms(self.fleet.pools[name].pool, self._now_ms, CLOSING_MS)
        if turn_ms is not None:
            self._at(turn_ms, lambda: self._turn(name))

    def _turn(self, name: str) -> None:
        self._is_stale = True
        for node_id in self.fleet.nodes_of_pool(name):
            self._drain_if_near(node_id)
        self._await_turn(name)

    def _befall(self, event: HostEvent) -> None:
        """What is said of a host that is not there does not happen."""
        self._is_stale = True
        host_id, now_ms = event.host_id, self._now_ms
        dark_ms = self.fleet.dark_since(host_id)
        if event.what == "join":
            if dark_ms is not None:  # it has started anew: what ran there is gone
                self._give_up_host(host_id)
            if not self.fleet.is_here(host_id):
                self.fleet.join(host_id)
        elif not self.fleet.is_here(host_id) or dark_ms is not None:
            return
        elif event.what == "drain":
            self._drain(host_id, now_ms + event.within_ms)
        else:
            self._unplug(host_id)

    def _drain(self, host_id: str, leaves_ms: int) -> None:
        self.fleet.drain(host_id, leaves_ms, self._now_ms)
        for node_id in self.fleet.nodes_on(host_id):
            self._plan_end(node_id)
        self._at(leaves_ms, lambda: self._left(host_id, leaves_ms))

    def _left(self, host_id: str, leaves_ms: int) -> None:
        if self.fleet.leaves_ms(host_id) == leaves_ms:
            self._give_up_host(host_id)

    def _unplug(self, host_id: str) -> None:
        now_ms = self._now_ms
        self.fleet.unplug(host_id, now_ms)
        for node_id in self.fleet.nodes_on(host_id):
            for view in self._board.runs_on(node_id):
                self._died_ms[view.run_id] = now_ms
                # Nothing that it was about to do happens. What has no code yet is asked for it before it begins.
                self._runs[view.run_id].over = view.state not in (RunState.STANDBY, RunState.PROMOTING)
        steps = (
            (UNREACHABLE_AFTER_MS, self._not_reached),
            (SILENT_AFTER_MS, self._silent),
            (LOST_AFTER_MS, self._give_up_host),
        )
        for after_ms, step in steps:
            self._at(now_ms + after_ms, partial(self._if_dark_since, host_id, now_ms, step))

    def _if_dark_since(self, host_id: str, dark_ms: int, step: Callable[[str], None]) -> None:
        if self.fleet.dark_since(host_id) == dark_ms:
            step(host_id)

    def _not_reached(self, host_id: str) -> None:
        for node_id in self.fleet.nodes_on(host_id):
            if self._cloud.machines[node_id].view.state == NodeState.READY:
                self._board.put_node(self._cloud.change(node_id, state=NodeState.UNREACHABLE))

    def _silent(self, host_id: str) -> None:
        self.fleet.fall_silent(host_id)
        self._is_stale = True

    def _give_up_host(self, host_id: str) -> None:
        for node_id in self.fleet.nodes_on(host_id):
            self._give_up_node(node_id)
        self.fleet.leave(host_id)
        self._is_stale = True

    # Runs on hosts that are dead

    def _go(self, life: Life, run: SimulatedRun) -> None:
        if not self.fleet.is_dark(run.view.node_id):
            super()._go(life, run)

    def _ran_ms(self, run: SimulatedRun) -> int:
        ran_ms = super()._ran_ms(run)
        died_ms = self._died_ms.get(run.view.run_id)
        return ran_ms if died_ms is None else max(0, ran_ms - (self._now_ms - died_ms))

    def _lose(self, run: SimulatedRun) -> None:
        super()._lose(run)
        self._died_ms.pop(run.view.run_id, None)


def simulation_of(scenario: Scenario, *, merging: bool) -> type[Simulation]:
    """What plays a scenario, with machines of one's own or without."""
    if scenario.own is None:
        return simulation_for(scenario, merging=merging)
    if scenario.world == FRIENDLY:
        return PoolMergingSimulation if merging else PoolSimulation
    return RoughPoolMergingSimulation if merging else RoughPoolSimulation


class PoolSimulation(WithPools):
    """In the friendly world."""


class PoolMergingSimulation(WithPools, MergingSimulation):
    """The same with jobs that can be merged."""


class RoughPoolSimulation(WithPools, RoughSimulation):
    """In a rougher world."""

    def _make_cloud(self, scenario: Scenario) -> Cloud:
        return RoughSimulation._make_cloud(self, scenario)

    def _make_hosts(self, scenario: Scenario) -> RoughCloud:
        cloud = RoughOwnCloud(scenario)
        self.fleet = cloud.fleet
        return cloud


class RoughPoolMergingSimulation(RoughPoolSimulation, MergingSimulation):
    """The same with jobs that can be merged."""
