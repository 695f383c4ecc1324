"""A simulation in which jobs take ranges of GPUs: what they are given, lend and have back, and where they move.

After each decision the functions are asked that the service asks (`app.core.lending`, `app.core.elastic`), on the same
board; what they say is enacted here. A training that goes on with another number of GPUs stands still for as long as
the world says, holds both numbers meanwhile, and loses nothing. How fast it is with a number is known once it has had
that for a while, or from what its training states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from app.core.elastic.deadlines import DeadlineGrowth
from app.core.elastic.profile import NOISE, MeasuredSpeed, SpeedProfile
from app.core.elastic.range_moves import (
    LOOK_MS,
    PATIENCE_MS,
    SMALLER,
    PlannedChange,
    SeenRanges,
    change_of,
    growth_of,
    idle_machines,
    may_leave,
    start_of,
    without_rivals,
)
from app.core.elastic.runs import REST_MS, ElasticRun
from app.core.elastic.size_table import profile_of
from app.core.lending import TAKE_MS, lend, remaining_of
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.plan import ActionKind, Migrate, MoveOut, Plan
from app.core.model.run import RunPurpose, RunState
from app.core.model.snapshot import JobView, NodeView
from app.core.resizing import GpusHeld, GpusTold
from app.simulator.engine import Event
from app.simulator.lives import Life, SimulatedRun
from app.simulator.moving_out import MovesOut
from app.simulator.ranges.course import SpeedCourse
from app.simulator.ranges.drawing import SAME, TaskRange
from app.simulator.ranges.records import RangeFigures, RangeKnown, RangeStay
from app.simulator.ranges.standing import Queues
from app.simulator.scenario import Scenario, Task

MEASURED_AFTER_MS = 20_000  # with a number of GPUs: clocks are put right to 5 s, and looks are 15 s apart
DECLINED_MS = 600_000  # who has left free what was lent to him is lent no more for so long, as live
LOOK_AT_LAST_MS = 600_000  # for machines of other sizes, where nothing else happens; live each half minute


class WithRanges(MovesOut):
    """See the module; to be put before what plays the rest."""

    def __init__(self, scenario: Scenario, *given: Any) -> None:
        super().__init__(scenario, *given)
        self.seen = RangeFigures()
        self._stays: dict[str, RangeStay] = {}  # by run
        self._known: dict[str, RangeKnown] = {}  # by job
        self._queues = Queues()
        self._new: list[str] = []  # jobs that no decision has seen
        self._began_ms: dict[str, int] = {}  # by run: when its code did
        self._declined_until_ms: dict[str, int] = {}
        self._looked_ms: int | None = None
        self._resize_ms = round(scenario.world.resize_s * 1000)
        ranges = [(task, task.elastic) for task in scenario.tasks if task.elastic is not None]
        fixed = {task.gpus for task in scenario.tasks if task.elastic is None}
        self._gpu_counts = tuple(sorted(fixed.union(*(one.sizes() for _, one in ranges))))
        self._patience_ms += 10 * sum(task.work_ms * one.slowest() for task, one in ranges)

    def _beside(self) -> dict[str, float]:
        return super()._beside() | self.seen.told()

    # How far a range has come

    def _go(self, life: Life, run: SimulatedRun) -> None:
        one, run_id = life.task.elastic, run.view.run_id
        if one is not None:
            uses = min(len(run.gpus), one.most)
            self._stays[run_id] = RangeStay(SpeedCourse(one.speed(uses)), uses, uses, run.held_from_ms, self._now_ms)
        super()._go(life, run)
        if run.view.running_since_ms is None:  # its host is dead, or it is over
            self._stays.pop(run_id, None)
            return
        self._began_ms[run_id] = self._now_ms
        if one is not None:
            self._board.put_job(self._shown(life))
            self._measure_later(life, run)

    def _work_of(self, run: SimulatedRun, trained_ms: int) -> int:
        stay = self._stays.get(run.view.run_id)
        return super()._work_of(run, trained_ms if stay is None else stay.course.done_ms(trained_ms))

    def _time_of(self, run: SimulatedRun, work_ms: int) -> int:
        usual_ms, stay = super()._time_of(run, work_ms), self._stays.get(run.view.run_id)
        return usual_ms if stay is None else stay.course.lasts_ms(usual_ms)

    def _finish(self, life: Life, run: SimulatedRun) -> None:
        """Unless its speed has changed since it was foretold to."""
        trains = run.view.run_id in self._stays and not run.over and run.view.state == RunState.RUNNING
        if trains and life.view.done_ms + self._worked_ms(run, self._ran_ms(run)) < life.work_ms:
            return
        super()._finish(life, run)

    def _count_speed(self, life: Life, run: SimulatedRun) -> None:
        stay = self._stays.get(run.view.run_id)
        if stay is None:
            super()._count_speed(life, run)
            return
        ran_ms = self._ran_ms(run)
        trained_ms = self._trained_ms(run, ran_ms)
        stood_ms = stay.course.stood_ms(trained_ms)
        life.outcome.move_ms += stood_ms
        life.outcome.slowed_ms += trained_ms - stood_ms - self._work_of(run, trained_ms)

    def _shown(self, life: Life) -> JobView:
        """Its times are those with the GPUs that it has, else with those that it asks for."""
        view, one, run = super()._shown(life), life.task.elastic, life.run
        if one is None:
            return view
        speed, before_ms, turned_ms = one.speed(view.resources.gpus_min), 0, 0
        stay = None if run is None else self._stays.get(run.view.run_id)
        if stay is not None and run is not None and run.view.running_since_ms is not None:
            speed, before_ms, turned_ms = stay.course.speed, stay.course.before_ms, stay.turned_ms
        total_ms = None if view.total_run_ms is None else view.total_run_ms * SAME // speed
        return replace(view, total_run_ms=total_ms, done_ms=(view.done_ms + before_ms) * SAME // speed - turned_ms)

    def _done(self, life: Life) -> None:
        super()._done(life)
        self._queues.ended(life)
        self._known.pop(life.task.job_id, None)

    def _end_run(self, life: Life, run: SimulatedRun) -> None:
        super()._end_run(life, run)
        self._stays.pop(run.view.run_id, None)
        self._began_ms.pop(run.view.run_id, None)

    def _charge_held(self, life: Life, run: SimulatedRun) -> None:
        super()._charge_held(life, run)
        began_ms = self._began_ms.get(run.view.run_id)
        if began_ms is not None:
            self._queues.held(life.task.job_id, max(run.held_from_ms, began_ms), self._now_ms, len(run.gpus))
        billed_from_ms = self._cloud.machines[run.view.node_id].billed_from_ms
        if life.task.elastic is not None and billed_from_ms is not None:
            held_ms = self._now_ms - max(run.held_from_ms, billed_from_ms)
            self.seen.held_ms[life.task.job_id, len(run.gpus)] += held_ms

    # Its size changes

    def _resize(self, life: Life, run: SimulatedRun, gpus: int) -> None:
        """More GPUs are its own at once, fewer once its training has left the others."""
        stay, one, node_id = self._stays[run.view.run_id], life.task.elastic, run.view.node_id
        assert one is not None
        more = self._cloud.machines[node_id].view.free_gpus[: max(0, gpus - len(run.gpus))]
        if more:
            self._hold_now(life, run, (*run.gpus, *more))
            self._board.put_node(self._cloud.hold(node_id, more))
        self.seen.resizes += 1
        ran_ms = self._ran_ms(run)
        trained_ms = self._trained_ms(run, ran_ms)
        stay.wanted, stay.turned_ms = gpus, self._with_saves_ms(run, trained_ms + self._resize_ms)
        stay.course.change(trained_ms, self._resize_ms, one.speed(gpus))
        self._board.put_job(self._shown(life))
        begun_ms, left_ms = self._now_ms - ran_ms, life.work_ms - life.view.done_ms
        self._at(max(self._now_ms, begun_ms + stay.turned_ms), partial(self._resized, life, run))
        self._at(max(self._now_ms, begun_ms + self._lasts_ms(run, left_ms)), lambda: self._finish(life, run))

    def _resized(self, life: Life, run: SimulatedRun) -> None:
        stay = self._stays.get(run.view.run_id)
        if stay is None or run.over or run.view.state != RunState.RUNNING:
            return  # it has stopped meanwhile, and leaves all that it held
        stay.uses, stay.used_from_ms = stay.wanted, self._now_ms
        left = run.gpus[stay.uses :]
        if left:
            self._hold_now(life, run, run.gpus[: stay.uses])
            self._board.put_node(self._cloud.free(run.view.node_id, left, self._now_ms))
        self._measure_later(life, run)

    def _hold_now(self, life: Life, run: SimulatedRun, gpus: tuple[int, ...]) -> None:
        """What it held until now is paid by itself."""
        self._charge_held(life, run)
        run.gpus, run.held_from_ms = gpus, self._now_ms
        self._stays[run.view.run_id].changed_ms = self._now_ms

    def _measure_later(self, life: Life, run: SimulatedRun) -> None:
        self._at(self._now_ms + MEASURED_AFTER_MS, partial(self._measure, life, run, self._now_ms))

    def _measure(self, life: Life, run: SimulatedRun, used_from_ms: int) -> None:
        """If it still uses what it used then."""
        stay, one = self._stays.get(run.view.run_id), life.task.elastic
        if stay is None or one is None or run.over or (stay.used_from_ms, stay.uses) != (used_from_ms, stay.wanted):
            return
        measured = self._known.setdefault(life.task.job_id, RangeKnown()).measured
        measured[stay.uses] = MeasuredSpeed(stay.course.speed / SAME, NOISE)

    # Before a decision

    def _decide(self) -> int | None:
        for job_id in self._new:
            self._size_start(self._lives[job_id])
        self._new.clear()
        return super()._decide()

    def _arrive(self, task: Task, tasks: Iterator[Task]) -> None:
        super()._arrive(task, tasks)
        if task.elastic is not None:
            self._board.put_job(self._shown(self._lives[task.job_id]))  # what is foretold is with the GPUs it asks for
            self._new += [task.job_id] if task.elastic.predicted else []

    def _size_start(self, life: Life) -> None:
        """It begins with more than it needs, where it would be late with that."""
        one, job_id = life.task.elastic, life.task.job_id
        assert one is not None
        profile = SpeedProfile(one.least, predicted=_predicted(one))
        start = start_of(self._board, self._board.jobs[job_id], profile, self._now_ms)
        if start is not None:
            self.seen.sized += 1
            self._known[job_id] = RangeKnown()
            self._ask_for_now(life, start.to.gpus)

    # After a decision

    def _followed(self, plan: Plan) -> int | None:
        """Who lends, has back and moves, of what the decision has left."""
        now_ms, runs = self._now_ms, self._elastic_runs()
        wake_ms = super()._followed(plan)
        if not runs:
            return wake_ms
        self._declined_until_ms = {one: until for one, until in self._declined_until_ms.items() if until > now_ms}
        placeable = {job.job_id for job in self._board.placeable()}
        waiting = placeable - self._declined_until_ms.keys()
        profiles = {run.run_id: self._profile(run) for run in runs}
        concerned = [self._lives[one] for one in sorted({run.job_id for run in runs} | waiting)]
        sharing = replace(self._queues.sharing(concerned, now_ms), profiles=profiles)
        found = lend(self._board, runs, waiting, now_ms, sharing)
        self._declined_until_ms |= dict.fromkeys(found.declined, now_ms + DECLINED_MS)
        for lent in found.lent:
            run = lent.run
            self.seen.lent += max(0, run.held.wanted - lent.gpus) if lent.to_job_id is not None else 0
            self._resize(self._lives[run.job_id], self._runs[run.run_id], lent.gpus)
        changed = {lent.run.run_id for lent in found.lent}
        still = [run for run in runs if run.run_id not in changed and run.is_settled(now_ms)]
        looks_ms = self._look(still, profiles, is_crowded=bool(placeable or plan.actions))
        patience_ms = TAKE_MS if waiting else REST_MS
        rested = [run.changed_ms + wait_ms for run in runs for wait_ms in (REST_MS, patience_ms)]
        return min(one for one in (wake_ms, looks_ms, *rested) if one is not None and one > now_ms)

    def _elastic_runs(self) -> list[ElasticRun]:
        """Those that train, and are not about to leave."""
        found = []
        for run_id, stay in self._stays.items():
            run = self._runs[run_id]
            one = self._lives[run.view.job_ids[0]].task.elastic
            if run.over or run.view.state != RunState.RUNNING or run.view.purpose != RunPurpose.TRAIN or one is None:
                continue
            if not self._board.is_moving(run.view.job_ids[0]):
                found.append(self._elastic_run(run, stay, one))
        return sorted(found, key=lambda one: one.run_id)

    def _elastic_run(self, run: SimulatedRun, stay: RangeStay, one: TaskRange) -> ElasticRun:
        used = run.gpus[: stay.uses]
        held = run.gpus if stay.uses != stay.wanted else used  # a machine that it has alone may have more than it takes
        return ElasticRun(
            run_id=run.view.run_id,
            job_id=run.view.job_ids[0],
            node_id=run.view.node_id,
            held=GpusHeld(held, stay.wanted),
            told=GpusTold(used),
            own=one.most,
            changed_ms=stay.changed_ms,
            least=one.least,
            is_range=True,
            due_ms=self._lives[run.view.job_ids[0]].view.deadline_ms,
        )

    def _profile(self, run: ElasticRun) -> SpeedProfile:
        one = self._lives[run.job_id].task.elastic
        assert one is not None
        return profile_of(run.asked, {}, self._known.setdefault(run.job_id, RangeKnown()).measured, _predicted(one))

    # Machines of other sizes

    def _look(self, runs: Sequence[ElasticRun], profiles: Mapping[str, SpeedProfile], *, is_crowded: bool) -> int:
        """When to look again."""
        now_ms = self._now_ms
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return self._looked_ms + LOOK_MS
        self._looked_ms = now_ms
        left_s = remaining_of(self._board, runs)
        known = [run for run in runs if run.run_id in left_s and self._may_leave(run)]
        idle = idle_machines(self._board.nodes.values(), {run.node_id for run in self._board.runs.values()})
        grown: set[str] = set()
        for run in known:
            there = () if grown else idle  # two would count on one
            grown |= {run.run_id} if self._grows(run, profiles[run.run_id], left_s[run.run_id], there) else set()
        if ActionKind.MIGRATE in self._config.capabilities:
            may_rent = self._board.serverful_nodes < self._config.serverful_limit
            seen = SeenRanges(self._board, profiles, self._config, is_crowded, may_rent, idle)
            others = [run for run in known if run.run_id not in grown]
            found = [change_of(seen, self._board.jobs[one.job_id], one, left_s[one.run_id], now_ms) for one in others]
            for change in without_rivals(list(filter(None, found))):
                self._change_machine(change)
        return now_ms + LOOK_AT_LAST_MS

    def _may_leave(self, run: ElasticRun) -> bool:
        changed_ms = self._known[run.job_id].changed_ms if self._lives[run.job_id].task.saves else None
        return may_leave(self._board.jobs[run.job_id], changed_ms, self._now_ms)

    def _grows(self, run: ElasticRun, profile: SpeedProfile, left_s: float, idle: Sequence[NodeView]) -> bool:
        """Whether it leaves, to go on with more GPUs elsewhere."""
        life = self._lives[run.job_id]
        growth: DeadlineGrowth | None = None
        if run.held.wanted < run.own:
            growth = growth_of(self._board, self._board.jobs[run.job_id], run, profile, left_s, self._now_ms, idle)
        if growth is None:
            return False
        self.seen.grown += 1
        self._ask_for_now(life, growth.to.gpus)
        self._send_back(life)
        return True

    def _ask_for_now(self, life: Life, gpus: int) -> None:
        """It waits so long for a machine with so many."""
        self._ask_for(life, gpus)
        self._known[life.task.job_id].changed_ms = self._now_ms
        self._at(self._now_ms + PATIENCE_MS, partial(self._begin_smaller, life, self._now_ms))

    def _begin_smaller(self, life: Life, grew_ms: int) -> None:
        """It has waited in vain for the machine that it was to have."""
        one, job_id = life.task.elastic, life.task.job_id
        if one is None or job_id not in self._lives or self._known[job_id].changed_ms != grew_ms:
            return
        if life.view.state in PLACEABLE_JOB_STATES and life.view.resources.gpus_min > one.least:
            self._ask_for(life, one.least)

    def _ask_for(self, life: Life, gpus: int) -> None:
        self._change(life, resources=replace(life.view.resources, gpus_min=gpus))

    def _change_machine(self, change: PlannedChange) -> None:
        life = self._lives[change.run.job_id]
        if isinstance(change.move, Migrate):
            self._migrate(change.move)
        elif not self._move_out(change.move):
            return
        self._known[change.run.job_id].changed_ms = self._now_ms
        if change.kind == SMALLER:
            self.seen.smaller += 1
            self._ask_for(life, change.gpus)
        else:
            self.seen.larger += 1

    def _await_target(self, action: MoveOut, node_id: str, ready_ms: int, ready: Event) -> None:
        self._await_start(action, node_id, ready_ms, ready)

    def _stop(self, life: Life) -> SimulatedRun:
        """It does not go where a machine is rented for it if it leaves before that is there."""
        target = None if life.run is None else life.run.goes_on_to
        if target is not None and not target.over and self._boots(target):
            self._call_off(life, target)
        return super()._stop(life)


def _predicted(one: TaskRange) -> dict[int, float]:
    return {gpus: speed / SAME for gpus, speed in enumerate(one.predicted, 1)}
