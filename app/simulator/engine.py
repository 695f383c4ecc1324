"""A discrete-event simulation of the fleet on a virtual clock, which asks a policy as the live loop does.

The policy sees a `Board` and gives a plan; here the plan is enacted on simulated machines. All that happens at one
moment happens before the policy is asked once. Same scenario, policy and configuration: the same history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from app.core.board import Board
from app.core.gpu_speeds import SAME
from app.core.lifecycle import JOB_TRANSITIONS, RUN_TRANSITIONS, pass_over
from app.core.machine_lives import SAVE_MS, saves_every_ms
from app.core.model.job import JobState
from app.core.model.node import ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.plan import (
    Action,
    Assign,
    Demote,
    Merge,
    Migrate,
    MoveOut,
    Plan,
    Preempt,
    Provision,
    Release,
    Split,
    Start,
)
from app.core.model.run import RunPurpose, RunState
from app.core.model.snapshot import JobView, RunView
from app.core.policies import goes_by_queues
from app.core.policy import Policy, PolicyConfig, PolicyState
from app.simulator.cloud import Cloud
from app.simulator.habits import Habits
from app.simulator.knowledge import REFINED_AT
from app.simulator.lives import Life, SimulatedRun, first_view
from app.simulator.outcomes import JobOutcome, SimulationResult
from app.simulator.scenario import Scenario, Task

Event = Callable[[], None]
Watch = Callable[[Board, Plan, PolicyState], None]


NOTHING_FOR_MS = 3_600_000
LEARNED_AGAIN_MS = 3_600_000  # once a machine has failed


class Stuck(Exception):
    """Unfinished jobs, and nothing that could ever happen to them."""


class Simulation:
    """Used once: `run` plays the scenario to its end. `watch` is called with every decision
    before it is enacted: the board that it was made on, the plan, and what the policy remembers."""

    def __init__(self, scenario: Scenario, policy: Policy, config: PolicyConfig, watch: Watch | None = None) -> None:
        self._scenario, self._policy, self._config, self._watch = scenario, policy, config, watch
        self._cloud = self._make_cloud(scenario)
        self._learns_again = False
        self._board = Board()
        self._board.no_ahead = frozenset() if scenario.ahead else frozenset(task.project for task in scenario.tasks)
        self._habits = Habits() if goes_by_queues(policy.name) else None
        self._state = PolicyState()
        self._now_ms = 0
        self._agenda: list[tuple[int, int, Event]] = []
        self._number = 0
        self._lives: dict[str, Life] = {}
        self._runs: dict[str, SimulatedRun] = {}
        self._unfinished = len(scenario.tasks)
        self._gpu_counts = tuple(sorted({task.gpus for task in scenario.tasks}))
        self._outcomes: list[JobOutcome] = []
        self._patience_ms = _longest_ms(scenario.tasks)
        # A policy may rent nothing until a deadline comes near; but not for long after the last one.
        self._busy_until_ms = max((max(task.submit_ms, task.deadline_ms) for task in scenario.tasks), default=0)
        self.decisions = 0

    def _make_cloud(self, scenario: Scenario) -> Cloud:
        return Cloud(scenario)

    def run(self) -> SimulationResult:
        """The outcome of every job, in order of submission, and the bills. Raises Stuck if jobs never end."""
        tasks = iter(sorted(self._scenario.tasks, key=lambda task: task.submit_ms))
        self._arrive_next(tasks)
        self._refresh_offers()
        wake_ms: int | None = None
        while self._unfinished:
            at_ms = self._next_ms(wake_ms)
            self._now_ms = self._board.now_ms = at_ms
            while self._agenda and self._agenda[0][0] == at_ms:
                heapq.heappop(self._agenda)[2]()
            wake_ms = self._decide()
        for node_id in list(self._board.nodes):  # the scenario ends with its last job
            self._end_node(node_id)
        cloud = self._cloud
        return SimulationResult(
            tuple(self._outcomes),
            dict(cloud.bills),
            cloud.most_rented,
            self.decisions,
            dict(cloud.billed_gpu_ms),
            cloud.most_gpus,
            self._beside(),
        )

    def _beside(self) -> dict[str, float]:
        """The figures that not every market and world has."""
        return {} if self._scenario.market.bids is None else self._cloud.bid_figures(self._outcomes)

    def _next_ms(self, wake_ms: int | None) -> int:
        times = [self._agenda[0][0]] if self._agenda else []
        times += [wake_ms] if wake_ms is not None else []
        next_ms = max(self._now_ms, min(times, default=self._now_ms))
        if self._board.nodes:
            self._busy_until_ms = max(self._busy_until_ms, next_ms)
        if not times or self._now_ms > min(self._patience_ms, self._busy_until_ms + NOTHING_FOR_MS):
            raise Stuck(f"{self._unfinished} jobs wait for something that never comes, at {self._now_ms} ms")
        return next_ms

    def _at(self, at_ms: int, event: Event) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (at_ms, self._number, event))

    def _arrive_next(self, tasks: Iterator[Task]) -> None:
        task = next(tasks, None)
        if task is not None:
            self._at(task.submit_ms, lambda: self._arrive(task, tasks))

    # Decisions

    def _decide(self) -> int | None:
        self.decisions += 1
        plan, self._state = self._policy.decide(self._board, self._state, self._config)
        if self._watch is not None:
            self._watch(self._board, plan, self._state)
        full = self._board.serverful_nodes >= self._config.serverful_limit
        sold_out = [action for action in plan.actions if not self._enact(action)]
        # Asked again at once: when an offer is sold out, for what a leaving job needs while it saves, for a place for
        # jobs that are one now or two again, and when a node that is given back makes room for another.
        changes = Demote | Preempt | Merge | Split
        leaves = any(isinstance(action, (changes | Release) if full else changes) for action in plan.actions)
        return self._now_ms if sold_out or leaves else self._followed(plan)

    def _followed(self, plan: Plan) -> int | None:
        """When to decide again, once the plan is enacted and what it has left undone is done."""
        return plan.wake_at_ms

    def _enact(self, action: Action) -> bool:
        """False if the last machine of the offer has just been taken by an earlier action of the plan."""
        if isinstance(action, Start | Provision) and not self._is_there(action.offer):
            return False
        if isinstance(action, Start):
            self._start(action)
        elif isinstance(action, Assign):
            self._assign(action)
        elif isinstance(action, Migrate):
            self._migrate(action)
        elif isinstance(action, Demote | Preempt):
            self._send_back(self._lives[action.job_id])
        elif isinstance(action, Provision):
            node, ready_ms = self._cloud.rent(action.offer, self._now_ms, action.project_id)
            self._board.put_node(node)
            self._supply_changed(action.offer.tier)
            self._await_start(action, node.node_id, ready_ms, lambda: self._node_ready(node.node_id))
        elif isinstance(action, Release):
            self._end_node(action.node_id)
        elif isinstance(action, Merge):
            self._merge(action)
        elif isinstance(action, Split):
            self._split(action)
        return True

    def _is_there(self, offer: Offer) -> bool:
        return self._cloud.left().get(offer.tier, 1) > 0

    def _await_start(self, _action: Start | Provision | MoveOut, _node_id: str, ready_ms: int, ready: Event) -> None:
        self._at(ready_ms, ready)

    def _merge(self, action: Merge) -> None:
        raise NotImplementedError("no job of this scenario can be merged")

    def _split(self, action: Split) -> None:
        raise NotImplementedError("no job of this scenario can be merged")

    # Jobs

    def _arrive(self, task: Task, tasks: Iterator[Task]) -> None:
        view = first_view(task, self._scenario.max_wait_ms)
        outcome = JobOutcome(
            task.job_id, task.submit_ms, task.work_ms, task.gpus, task.deadline_ms, alone_ms=task.work_ms
        )
        self._outcomes.append(outcome)
        self._lives[task.job_id] = Life(task, view, outcome, task.work_ms, task.predicted_ms)
        self._board.put_job(view)
        self._arrive_next(tasks)

    def _change(self, life: Life, *, state: JobState | None = None, **changes: object) -> None:
        if state is not None:
            changes["state"] = pass_over(JOB_TRANSITIONS, life.view.state, state)
        # Its fields by name.
        view = replace(life.view, row_version=life.view.row_version + 1, **changes)  # type: ignore[arg-type]
        life.view = view
        self._board.put_job(self._shown(life))

    def _shown(self, life: Life) -> JobView:
        """What policies see: its times are those on the GPUs that it trains on, else on an A100."""
        speeds, run = life.task.speeds, life.run
        if speeds is None or run is None or run.view.running_since_ms is None:
            return life.view
        gpu_type, view = self._gpu_type_of(run), life.view
        total_ms = None if view.total_run_ms is None else view.total_run_ms * speeds.permille(gpu_type) // SAME
        done_ms = view.done_ms * speeds.permille(gpu_type) // SAME
        seen = None if view.speeds is None else view.speeds.seen_from(gpu_type, trains_there=True)
        return replace(view, total_run_ms=total_ms, done_ms=done_ms, speeds=seen)

    def _change_run(self, run: SimulatedRun, state: RunState, **changes: object) -> None:
        changes["state"] = pass_over(RUN_TRANSITIONS, run.view.state, state)
        # Its fields by name.
        run.view = replace(run.view, row_version=run.view.row_version + 1, **changes)  # type: ignore[arg-type]
        self._board.put_run(run.view)

    # Runs begin

    def _start(self, action: Start) -> None:
        life = self._lives[action.job_id]
        node, ready_ms = self._cloud.rent(action.offer, self._now_ms, life.view.project_id)
        node = self._cloud.hold(node.node_id, node.free_gpus)
        self._board.put_node(node)
        self._supply_changed(action.offer.tier)
        run = self._hold(life, node.node_id, tuple(range(node.gpu_count)), RunState.ASSIGNED, action.purpose)
        self._change(life, state=JobState.STARTING)
        self._await_start(action, node.node_id, ready_ms, lambda: self._serverless_ready(life, run))

    def _serverless_ready(self, life: Life, run: SimulatedRun) -> None:
        if run.over:
            return
        if run.view.tier == Tier.SERVERLESS:
            price = self._cloud.machines[run.view.node_id].view.price_per_hour
            life.outcome.boot_usd += price.micros * (self._now_ms - run.view.created_ms) / 3.6e12
        self._board.put_node(self._cloud.ready(run.view.node_id, self._now_ms))
        self._may_die(run.view.node_id, run.view.tier)
        self._load(life, run)

    def _assign(self, action: Assign) -> None:
        life = self._lives[action.job_id]
        self._board.put_node(self._cloud.hold(action.node_id, action.gpu_indices))
        run = self._hold(life, action.node_id, action.gpu_indices, RunState.STARTING, action.purpose)
        self._change(life, state=JobState.STARTING)
        self._load(life, run)

    def _hold(
        self,
        life: Life,
        node_id: str,
        gpus: tuple[int, ...],
        state: RunState,
        purpose: RunPurpose = RunPurpose.TRAIN,
    ) -> SimulatedRun:
        self._number += 1
        tier = self._cloud.machines[node_id].view.tier
        view = RunView(
            run_id=f"run_{self._number:08d}",
            job_ids=self._riders(life),
            node_id=node_id,
            tier=tier,
            state=state,
            row_version=1,
            created_ms=self._now_ms,
            purpose=purpose,
        )
        run = self._runs[view.run_id] = SimulatedRun(view, gpus, self._now_ms)
        self._board.put_run(view)
        life.run = run
        if purpose == RunPurpose.TRAIN:
            life.outcome.tiers += tier.value[0]
        return run

    def _riders(self, life: Life) -> tuple[str, ...]:
        """The jobs that are trained where this one is placed, itself first."""
        return (life.task.job_id,)

    def _load(self, life: Life, run: SimulatedRun) -> None:
        """Code begins at once, or after the checkpoint is loaded."""
        load_ms = self._scenario.moves.load_ms if life.view.done_ms else 0
        life.outcome.move_ms += load_ms
        if load_ms == 0:
            self._go(life, run)
        else:
            self._at(self._now_ms + load_ms, lambda: self._go(life, run))

    def _go(self, life: Life, run: SimulatedRun) -> None:
        if run.over:
            return
        outcome = life.outcome
        if outcome.started_ms is None:
            outcome.started_ms = self._now_ms
        self._change_run(run, RunState.RUNNING, running_since_ms=self._now_ms)
        if life.view.state != JobState.RUNNING:  # it trains on through a move
            self._change(life, state=JobState.RUNNING)
        elif life.task.speeds is not None:
            self._board.put_job(self._shown(life))
        left_ms = life.work_ms - life.view.done_ms
        self._at(self._now_ms + self._lasts_ms(run, left_ms), lambda: self._finish(life, run))
        if life.predicted_ms is not None and life.view.total_run_ms is None:
            known_ms = max(0, life.task.known_after_ms - life.view.done_ms)
            self._at(self._now_ms + self._time_of(run, known_ms), lambda: self._know(life, run))
        if life.task.refined:
            self._await_refinements(life, run)

    def _know(self, life: Life, run: SimulatedRun) -> None:
        if life.run is run and life.view.total_run_ms is None and run.view.state == RunState.RUNNING:
            self._change(life, total_run_ms=life.predicted_ms)

    def _await_refinements(self, life: Life, run: SimulatedRun) -> None:
        """As more of it is done, what is left of the error is what is left of the work."""
        task = life.task
        assert task.predicted_ms is not None
        error = task.predicted_ms / task.work_ms
        for share in REFINED_AT:
            in_ms = round(share * life.work_ms) - life.view.done_ms
            if in_ms > 0:
                at_share = error ** (1 - share)
                self._at(self._now_ms + self._time_of(run, in_ms), partial(self._refine, life, run, at_share))

    def _refine(self, life: Life, run: SimulatedRun, error: float) -> None:
        if life.run is not run or run.view.state != RunState.RUNNING:
            return
        life.predicted_ms = max(1, round(life.work_ms * error))
        if life.view.total_run_ms is not None:
            self._change(life, total_run_ms=life.predicted_ms)

    # Runs end

    def _finish(self, life: Life, run: SimulatedRun) -> None:
        if run.over or run.view.state != RunState.RUNNING:
            return
        self._count_speed(life, run)
        self._leave(life, run)
        self._done(life)

    def _done(self, life: Life) -> None:
        pass_over(JOB_TRANSITIONS, life.view.state, JobState.SUCCEEDED)
        life.outcome.finished_ms = self._now_ms
        if self._habits is not None:
            self._board.queue_means = self._habits.with_ended(life)
        self._unfinished -= 1
        self._board.drop_job(life.task.job_id)
        del self._lives[life.task.job_id]

    def _stop(self, life: Life) -> SimulatedRun:
        """The run saves from now on; what it has done so far is kept, unless its job never saves."""
        run = life.run
        assert run is not None
        assert run.view.running_since_ms is not None
        ran_ms = self._ran_ms(run)
        self._count_speed(life, run)
        serverless_ms = ran_ms if run.view.tier == Tier.SERVERLESS else 0
        saved_ms = self._saved_when_asked_ms(life, run, ran_ms)
        life.outcome.lost_ms += life.view.done_ms + self._worked_ms(run, ran_ms) - saved_ms
        run.kept_ms = life.view.done_ms
        life.outcome.moves += 1
        life.outcome.move_ms += self._scenario.moves.save_ms
        self._change_run(run, RunState.STOPPING, running_since_ms=None)
        self._change(
            life,
            done_ms=saved_ms,
            serverless_used_ms=life.view.serverless_used_ms + serverless_ms,
        )
        return run

    def _send_back(self, life: Life) -> None:
        run = self._stop(life)
        self._change(life, state=JobState.CHECKPOINTING)
        self._at(self._now_ms + self._scenario.moves.save_ms, lambda: self._saved(life, run))

    def _saved(self, life: Life, run: SimulatedRun) -> None:
        if run.over:
            return
        self._leave(life, run)
        self._change(life, state=JobState.WAITING)

    def _migrate(self, action: Migrate) -> None:
        """Both places are held until the source has saved; then the target loads and goes on."""
        life = self._lives[action.job_id]
        source = self._stop(life)
        self._board.put_node(self._cloud.hold(action.node_id, action.gpu_indices))
        target = self._hold(life, action.node_id, action.gpu_indices, RunState.STANDBY)
        source.goes_on_to = target
        self._at(self._now_ms + self._scenario.moves.save_ms, lambda: self._promote(life, source, target))

    def _promote(self, life: Life, source: SimulatedRun, target: SimulatedRun) -> None:
        if source.over:
            return
        self._leave(life, source)
        if target.over:
            self._change(life, state=JobState.WAITING)
        else:
            self._go_on(life, target)

    def _go_on(self, life: Life, target: SimulatedRun) -> None:
        """The target of a move is on its own from here."""
        self._change_run(target, RunState.PROMOTING)
        self._load(life, target)

    def _leave(self, life: Life, run: SimulatedRun) -> None:
        """The run is over: its GPUs are free, or its machine ends with it."""
        self._end_run(life, run)
        node_id = run.view.node_id
        if run.view.tier == Tier.SERVERLESS:
            self._end_node(node_id)
        else:
            self._board.put_node(self._cloud.free(node_id, run.gpus, self._now_ms))

    def _end_run(self, life: Life, run: SimulatedRun) -> None:
        pass_over(RUN_TRANSITIONS, run.view.state, RunState.ENDED)
        run.over = True
        del self._runs[run.view.run_id]
        if life.run is run:
            life.run = None
        self._board.drop_run(run.view.run_id)
        self._charge_held(life, run)

    def _charge_held(self, life: Life, run: SimulatedRun) -> None:
        """For the GPUs that it has, since it has just these."""
        machine = self._cloud.machines[run.view.node_id]
        from_ms = self._now_ms if machine.billed_from_ms is None else machine.billed_from_ms
        held_ms = self._now_ms - max(run.held_from_ms, from_ms)
        share = len(run.gpus) / machine.view.gpu_count
        self._charge(life, machine.view.price_per_hour.micros * share * held_ms / 3.6e12)

    def _charge(self, life: Life, usd: float) -> None:
        life.outcome.cost_usd += usd

    # Machines

    def _node_ready(self, node_id: str) -> None:
        if node_id in self._cloud.machines:
            self._board.put_node(self._cloud.ready(node_id, self._now_ms))
            self._may_die(node_id, self._cloud.machines[node_id].view.tier)

    def _end_node(self, node_id: str, *, failed: bool = False) -> None:
        tier = self._cloud.machines[node_id].view.tier
        self._cloud.end(node_id, self._now_ms, failed=failed)
        self._board.drop_node(node_id)
        self._supply_changed(tier)

    def _may_die(self, node_id: str, tier: Tier) -> None:
        lives_ms = (self._cloud.life_ms(tier), self._cloud.bid_life_ms(node_id, self._now_ms))
        life_ms = min((one for one in lives_ms if one is not None), default=None)
        if life_ms is not None:
            self._at(self._now_ms + life_ms, lambda: self._die(node_id))

    def _die(self, node_id: str) -> None:
        """The machine is gone with all that was not saved on it."""
        if node_id not in self._cloud.machines:
            return
        for view in self._board.runs_on(node_id):
            self._lose(self._runs[view.run_id])
        if node_id in self._cloud.machines:
            self._end_node(node_id, failed=True)
        self._learn_machine_lives()
        if not self._learns_again:
            self._learns_again = True
            self._at(self._now_ms + LEARNED_AGAIN_MS, self._learn_again)

    def _learn_again(self) -> None:
        """What was long ago counts less: a market that was left because its machines failed is tried again."""
        self._learn_machine_lives()
        self._at(self._now_ms + LEARNED_AGAIN_MS, self._learn_again)

    def _learn_machine_lives(self) -> None:
        """How long machines live, from those that failed and those that did not."""
        for view in self._cloud.learn(self._now_ms):
            self._board.put_node(view)
        self._set_offers()

    def _lose(self, run: SimulatedRun) -> None:
        """Its job goes on from the last checkpoint: on the target of a move, else where it gets a place."""
        life = self._lives[run.view.job_ids[0]]
        bid = self._cloud.machines[run.view.node_id].view.interruptible
        life.outcome.lost_bids += bid
        life.outcome.faults += not bid
        if run.view.state == RunState.STANDBY:
            self._leave(life, run)  # the source goes on saving, and finds nobody to go on
            return
        if run.view.running_since_ms is not None:
            ran_ms = self._ran_ms(run)
            self._count_speed(life, run)
            run.kept_ms = self._saved_before_ms(life, run, ran_ms)
            life.outcome.lost_ms += life.view.done_ms + self._worked_ms(run, ran_ms) - run.kept_ms
            if run.view.tier == Tier.SERVERLESS:
                self._change(life, serverless_used_ms=life.view.serverless_used_ms + ran_ms)
        self._leave(life, run)
        if run.kept_ms is not None:
            self._change(life, done_ms=run.kept_ms)
        if run.goes_on_to is not None and not run.goes_on_to.over:
            self._go_on(life, run.goes_on_to)
        else:
            self._change(life, state=JobState.WAITING)

    # Work and saves

    def _ran_ms(self, run: SimulatedRun) -> int:
        """How long its code has run, once it does."""
        assert run.view.running_since_ms is not None
        return self._now_ms - run.view.running_since_ms

    def _trained_ms(self, _run: SimulatedRun, ran_ms: int) -> int:
        """Of so much time, without waiting for saves."""
        return ran_ms

    def _worked_ms(self, run: SimulatedRun, ran_ms: int) -> int:
        """The work of so much time."""
        return self._work_of(run, self._trained_ms(run, ran_ms))

    def _count_speed(self, life: Life, run: SimulatedRun) -> None:
        """Once it trains no more: what it trained longer, or shorter, than on the usual GPUs."""
        if life.task.speeds is not None:
            ran_ms = self._ran_ms(run)
            life.outcome.slowed_ms += self._trained_ms(run, ran_ms) - self._worked_ms(run, ran_ms)

    def _lasts_ms(self, run: SimulatedRun, work_ms: int) -> int:
        """How long a run takes for so much work."""
        return self._with_saves_ms(run, self._time_of(run, work_ms))

    def _with_saves_ms(self, _run: SimulatedRun, trained_ms: int) -> int:
        """The least in which it trains for so long."""
        return trained_ms

    def _work_of(self, run: SimulatedRun, trained_ms: int) -> int:
        """Of time that it trained: work is time on an A100."""
        speeds = self._lives[run.view.job_ids[0]].task.speeds
        return trained_ms if speeds is None else trained_ms * SAME // speeds.permille(self._gpu_type_of(run))

    def _time_of(self, run: SimulatedRun, work_ms: int) -> int:
        """The least that does so much work."""
        speeds = self._lives[run.view.job_ids[0]].task.speeds
        return work_ms if speeds is None else -(-work_ms * speeds.permille(self._gpu_type_of(run)) // SAME)

    def _gpu_type_of(self, run: SimulatedRun) -> str:
        return self._cloud.machines[run.view.node_id].view.gpu_type

    def _saved_when_asked_ms(self, life: Life, run: SimulatedRun, ran_ms: int) -> int:
        """The job's work that is safe after a save that it was asked for."""
        return life.view.done_ms + self._work_of(run, ran_ms) if life.task.saves else 0

    def _saved_before_ms(self, life: Life, run: SimulatedRun, ran_ms: int) -> int:
        """The job's work that is safe when its machine dies."""
        return life.view.done_ms + self._work_of(run, self._saved_ms(run, ran_ms)) if life.task.saves else 0

    def _saved_ms(self, run: SimulatedRun, ran_ms: int) -> int:
        """Of the work since it began to run. Where machines are known to fail saves are closer, and those that are more
        than usual are not for nothing."""
        usual_ms = self._scenario.checkpoint_every_ms
        every_ms = saves_every_ms(self._cloud.machines[run.view.node_id].view.mean_life_ms, usual_ms)
        costs_ms = SAVE_MS * (usual_ms - every_ms) // usual_ms
        return ran_ms // (every_ms + costs_ms) * every_ms

    # The market

    def _supply_changed(self, tier: Tier) -> None:
        if tier in self._scenario.market.limits:
            self._set_offers()

    def _refresh_offers(self) -> None:
        self._set_offers()
        next_s = self._scenario.market.next_change_s(self._now_ms / 1000)
        if next_s is not None:
            self._at(max(self._now_ms + 1, round(next_s * 1000)), self._refresh_offers)

    def _set_offers(self) -> None:
        self._board.set_offers(self._offers(), self._traits())

    def _offers(self) -> tuple[Offer, ...]:
        """All that could be had now."""
        market = self._scenario.market
        offers = market.offers(self._now_ms / 1000, self._gpu_counts, self._cloud.left())
        return self._cloud.as_learned(offers)

    def _traits(self) -> tuple[ProviderTraits, ...]:
        return self._scenario.market.traits()


def _longest_ms(tasks: tuple[Task, ...]) -> int:
    """A moment by which every job is done, even one after the other with many moves each.

    A policy may let a job wait until its deadline comes near.
    """
    last_ms = max((max(task.submit_ms, task.deadline_ms) for task in tasks), default=0)
    slowest = max((task.speeds.slowest() for task in tasks if task.speeds is not None), default=1)
    return last_ms + 10 * sum(task.work_ms * slowest + 3_600_000 for task in tasks)
