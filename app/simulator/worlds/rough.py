"""A simulation in a world that is not friendly: starts that fail, fetching, saves that cost time, and short supply."""

from __future__ import annotations

from dataclasses import replace

from app.core.machine_lives import saves_every_ms
from app.core.model.job import JobState
from app.core.model.node import ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Migrate, MoveOut, Provision, Start
from app.core.model.run import RunState
from app.simulator.bids import below_on_demand
from app.simulator.cloud import Cloud
from app.simulator.engine import Event, Simulation
from app.simulator.lives import Life, SimulatedRun
from app.simulator.merging import MergingSimulation
from app.simulator.outcomes import SimulationResult
from app.simulator.scenario import Scenario
from app.simulator.worlds.hosts import RoughCloud
from app.simulator.worlds.known import FRIENDLY
from app.simulator.worlds.rhythm import NO_SAVES, Rhythm

# As the service does it (`app.services.moves.hand_jobs_on`, `app.db.decisions.job_views`).
FIRST_BACK_OFF_MS, NEXT_BACK_OFF_MS = 1_000, 30_000
AVOID_OFFER_MS = 600_000
_TOLD_BETWEEN_SAVES = 4  # how often policies hear, between two saves of a job's own, how far it is


class RoughSimulation(Simulation):
    """See the module. In the friendly world it plays what a plain simulation plays."""

    def _make_cloud(self, scenario: Scenario) -> Cloud:
        self._hosts = self._make_hosts(scenario)
        self._world = scenario.world
        self._rhythms: dict[str, Rhythm] = {}  # by run
        self._prepared_ms: dict[str, int] = {}  # when the target of a move has fetched all, by run
        self._failed_starts = 0
        return self._hosts

    def _make_hosts(self, scenario: Scenario) -> RoughCloud:
        return RoughCloud(scenario)

    def run(self) -> SimulationResult:
        self._supply_turns()
        return super().run()

    def _beside(self) -> dict[str, float]:
        many = max(1, len(self._outcomes))
        return super()._beside() | {
            "failed_starts": self._failed_starts,
            "mean_fetch_s": sum(one.fetch_ms for one in self._outcomes) / many / 1000,
            "mean_saving_s": sum(one.saving_ms for one in self._outcomes) / many / 1000,
            "storage_usd": self._hosts.storage / 1e6,
            "traffic_usd": self._hosts.traffic / 1e6,
        }

    # Starts that fail

    def _await_start(self, action: Start | Provision | MoveOut, node_id: str, ready_ms: int, ready: Event) -> None:
        late_ms = self._now_ms + self._hosts.give_up_ms(action.offer.tier)
        if ready_ms <= late_ms:
            super()._await_start(action, node_id, ready_ms, ready)
            return
        job_id = action.for_job_id if isinstance(action, Provision) else action.job_id
        self._at(late_ms, lambda: self._give_up(node_id, action.offer, job_id))

    def _give_up(self, node_id: str, offer: Offer, job_id: str) -> None:
        """The machine has not come up in its time: whom it was rented for takes another offer next."""
        if node_id not in self._cloud.machines:
            return
        self._failed_starts += 1
        for view in self._board.runs_on(node_id):
            run = self._runs[view.run_id]
            life = self._lives[view.job_ids[0]]
            self._leave(life, run)
            ran = life.outcome.started_ms is not None
            self._change(life, state=JobState.WAITING if ran else JobState.QUEUED)
        if node_id in self._cloud.machines:
            self._end_node(node_id)
        if job_id in self._lives:
            self._avoid(self._lives[job_id], offer.key)

    def _avoid(self, life: Life, offer_key: str) -> None:
        wait_ms = NEXT_BACK_OFF_MS if offer_key in life.view.avoided_offers else FIRST_BACK_OFF_MS
        not_before_ms = max(life.view.not_before_ms, self._now_ms + wait_ms)
        avoided = life.view.avoided_offers | {offer_key}
        self._change(life, avoided_offers=avoided, not_before_ms=not_before_ms)
        self._at(not_before_ms + AVOID_OFFER_MS, lambda: self._forgive(life))

    def _forgive(self, life: Life) -> None:
        lives = life.task.job_id in self._lives
        if lives and self._now_ms >= life.view.not_before_ms + AVOID_OFFER_MS:
            self._change(life, avoided_offers=frozenset())

    # Fetching

    def _load(self, life: Life, run: SimulatedRun) -> None:
        """What the job needs is fetched first; the target of a move has begun with it before."""
        prepared_ms = self._prepared_ms.pop(run.view.run_id, None)
        if prepared_ms is None:
            prepared_ms = self._now_ms + self._hosts.fetch_ms(run.view.node_id, life.task)
        wait_ms = max(0, prepared_ms - self._now_ms)
        if not life.view.done_ms:  # otherwise it is part of loading the checkpoint
            wait_ms += round(self._world.begin_s * 1000)
        life.outcome.fetch_ms += wait_ms
        if wait_ms:
            self._at(self._now_ms + wait_ms, lambda: self._fetched(life, run))
        else:
            super()._load(life, run)

    def _fetched(self, life: Life, run: SimulatedRun) -> None:
        if not run.over:
            super()._load(life, run)

    # Moves: the target fetches while the source trains on

    def _migrate(self, action: Migrate) -> None:
        life = self._lives[action.job_id]
        source = life.run
        assert source is not None
        self._board.put_node(self._cloud.hold(action.node_id, action.gpu_indices))
        target = self._hold(life, action.node_id, action.gpu_indices, RunState.STANDBY)
        life.run, source.goes_on_to = source, target
        fetch_ms = self._hosts.fetch_ms(action.node_id, life.task)
        self._prepared_ms[target.view.run_id] = self._now_ms + fetch_ms
        if fetch_ms:
            self._at(self._now_ms + fetch_ms, lambda: self._leave_for(life, source, target))
        else:
            self._leave_for(life, source, target)

    def _leave_for(self, life: Life, source: SimulatedRun, target: SimulatedRun) -> None:
        if source.over or target.over or source.view.state != RunState.RUNNING:
            return
        self._stop(life)
        life.run = target
        self._at(self._now_ms + self._scenario.moves.save_ms, lambda: self._promote(life, source, target))

    def _go_on(self, life: Life, target: SimulatedRun) -> None:
        life.run = target
        super()._go_on(life, target)

    def _drop_target(self, life: Life, source: SimulatedRun) -> None:
        """Of a move whose source does not leave for it any more, while it still prepares."""
        target = source.goes_on_to
        prepares = target is not None and self._prepared_ms.get(target.view.run_id, 0) > self._now_ms
        if target is None or target.over or not prepares:
            return
        life.outcome.tiers = life.outcome.tiers[:-1]  # it never ran there
        self._leave(life, target)

    def _end_run(self, life: Life, run: SimulatedRun) -> None:
        super()._end_run(life, run)
        self._rhythms.pop(run.view.run_id, None)
        if run.over:
            self._prepared_ms.pop(run.view.run_id, None)

    # Work and saves

    def _go(self, life: Life, run: SimulatedRun) -> None:
        if run.over:
            return
        self._rhythms[run.view.run_id] = self._rhythm(life, run)
        super()._go(life, run)
        self._tell_later(life, run)

    def _rhythm(self, life: Life, run: SimulatedRun) -> Rhythm:
        """As it is told when it begins."""
        task = life.task
        pause_ms = round(self._world.save_s * 1000)
        if task.own_saves_ms is not None:
            return Rhythm(task.own_saves_ms, pause_ms)
        if not task.saves:
            return NO_SAVES
        mean_life_ms = self._cloud.machines[run.view.node_id].view.mean_life_ms
        return Rhythm(saves_every_ms(mean_life_ms, self._scenario.checkpoint_every_ms), pause_ms)

    def _trained_ms(self, run: SimulatedRun, ran_ms: int) -> int:
        return self._rhythm_of(run).worked_ms(ran_ms)

    def _with_saves_ms(self, run: SimulatedRun, trained_ms: int) -> int:
        return self._rhythm_of(run).lasts_ms(trained_ms)

    def _safe_ms(self, run: SimulatedRun, ran_ms: int) -> int:
        """The work up to its last save."""
        return self._work_of(run, self._rhythm_of(run).safe_ms(ran_ms))

    def _rhythm_of(self, run: SimulatedRun) -> Rhythm:
        return self._rhythms.get(run.view.run_id, NO_SAVES)

    def _saved_when_asked_ms(self, life: Life, run: SimulatedRun, ran_ms: int) -> int:
        if life.task.own_saves_ms is not None:
            return life.view.done_ms + self._safe_ms(run, ran_ms)
        return life.view.done_ms + self._worked_ms(run, ran_ms) if life.task.saves else 0

    def _saved_before_ms(self, life: Life, run: SimulatedRun, ran_ms: int) -> int:
        """With notice of its end long enough for a save, a machine loses only what it did since it was told."""
        notice_s = self._world.of(run.view.tier).notice_s
        if life.task.saves and notice_s and notice_s >= self._world.save_s:
            return life.view.done_ms + self._worked_ms(run, max(0, ran_ms - round(notice_s * 1000)))
        if not life.task.saves and life.task.own_saves_ms is None:
            return 0
        return life.view.done_ms + self._safe_ms(run, ran_ms)

    # A run stops, in one of three ways

    def _finish(self, life: Life, run: SimulatedRun) -> None:
        if run.over or run.view.state != RunState.RUNNING:
            return
        self._drop_target(life, run)
        self._count_saving(life, run)
        super()._finish(life, run)

    def _stop(self, life: Life) -> SimulatedRun:
        assert life.run is not None
        self._drop_target(life, life.run)
        self._count_saving(life, life.run)
        run = super()._stop(life)
        if life.task.own_saves_ms is not None:
            run.kept_ms = life.view.done_ms  # its saves are where they were
            self._tell_steps(life, life.view.done_ms, life.view.done_ms)
        return run

    def _lose(self, run: SimulatedRun) -> None:
        life = self._lives[run.view.job_ids[0]]
        if run.view.running_since_ms is not None:
            self._count_saving(life, run)
        super()._lose(run)
        if life.task.own_saves_ms is not None and life.task.job_id in self._lives:
            self._tell_steps(life, life.view.done_ms, life.view.done_ms)

    def _count_saving(self, life: Life, run: SimulatedRun) -> None:
        ran_ms = self._ran_ms(run)
        life.outcome.saving_ms += ran_ms - self._trained_ms(run, ran_ms)

    # What policies hear of a job that saves by itself

    def _tell_later(self, life: Life, run: SimulatedRun) -> None:
        own_ms = life.task.own_saves_ms
        if own_ms is not None and not run.over:
            self._at(self._now_ms + max(1, own_ms // _TOLD_BETWEEN_SAVES), lambda: self._tell_progress(life, run))

    def _tell_progress(self, life: Life, run: SimulatedRun) -> None:
        if run.over or run.view.running_since_ms is None or life.task.job_id not in self._lives:
            return
        ran_ms = self._now_ms - run.view.running_since_ms
        before_ms = life.view.done_ms
        self._tell_steps(life, before_ms + self._worked_ms(run, ran_ms), before_ms + self._safe_ms(run, ran_ms))
        self._tell_later(life, run)

    def _tell_steps(self, life: Life, worked_ms: int, safe_ms: int) -> None:
        """A step is a second. A job without a checkpoint is moved by no plan."""
        self._change(life, step=worked_ms // 1000, checkpoint_step=safe_ms // 1000 or None)

    # Supply

    def _is_there(self, offer: Offer) -> bool:
        return super()._is_there(offer) and self._hosts.supply.has(offer, self._now_ms)

    def _supply_changed(self, _tier: Tier) -> None:
        self._set_offers()

    def _supply_turns(self) -> None:
        """A drought begins or ends: offers change, and nobody is stuck who waits for its end."""
        supply = self._hosts.supply
        if self._now_ms:
            self._set_offers()
        turn_ms = supply.next_turn_ms(self._now_ms)
        if turn_ms is None:
            return
        if supply.is_dry(self._now_ms):
            self._busy_until_ms = max(self._busy_until_ms, turn_ms)
            self._patience_ms += turn_ms - self._now_ms
        self._at(turn_ms, self._supply_turns)

    def _offers(self) -> tuple[Offer, ...]:
        market = self._scenario.market
        plain = market.offers(self._now_ms / 1000, self._gpu_counts, self._cloud.left())
        return self._cloud.as_learned(below_on_demand(self._hosts.supply.offers(plain, self._now_ms)))

    def _traits(self) -> tuple[ProviderTraits, ...]:
        traits = super()._traits()
        return tuple(replace(one, startup_deadline_ms=self._hosts.give_up_ms(one.tier)) for one in traits)


class RoughMergingSimulation(RoughSimulation, MergingSimulation):
    """The same with jobs that can be merged."""


def simulation_for(scenario: Scenario, *, merging: bool) -> type[Simulation]:
    """What plays a scenario."""
    if scenario.world == FRIENDLY:
        return MergingSimulation if merging else Simulation
    return RoughMergingSimulation if merging else RoughSimulation
