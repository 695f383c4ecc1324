"""A simulation in which jobs can be merged: what two jobs trained as one really take, what the monitor sees of it, and
how they go on when they are split or lose their machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from app.core.merging.joined import joined
from app.core.merging.own_profile import profiles_itself
from app.core.model.job import PLACEABLE_JOB_STATES, JobState, Resources
from app.core.model.merge import MergeMode, MergeView
from app.core.model.plan import Merge, Split
from app.core.model.run import RunPurpose, RunState
from app.core.model.snapshot import JobView
from app.core.spot_places import is_of_its_class
from app.simulator.engine import Simulation
from app.simulator.lives import Life, SimulatedRun
from app.simulator.mergeable import PROFILE_MS, SEEN_SHARES, looks_fruitless, true_gain
from app.simulator.scenario import GPUS_OF_A_HOST, Task


@dataclass(slots=True)
class _Pair:
    """`gain`: what it really is. `own`: what the views of both said before. `judged_ms`: of the lead's work, when the
    monitor knows; None: it has said what it saw."""

    view: MergeView
    lead: Life
    companion: Life
    gain: float
    own: tuple[dict[str, Any], dict[str, Any]]
    judged_ms: int | None

    @property
    def together(self) -> bool:
        return self.view.mode == MergeMode.TOGETHER


class MergingSimulation(Simulation):
    """See the module. Without `merging` in the configuration it is a plain simulation of the same jobs."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._pairs: dict[str, _Pair] = {}  # by the lead's id
        self._finished_in_turn: dict[str, tuple[float, float]] = {}  # score and gain, by the companion's id
        counts = {task.gpus for task in self._scenario.tasks if task.trainee is not None}
        if self._config.merging and self._config.serverful_limit >= len(self._scenario.tasks):
            # Without a limit on nodes there are some for two jobs side by side. With one a pair takes no more GPUs
            # than one of its jobs: else the limit would allow more GPUs with merging than without.
            counts |= {one + other for one in counts for other in counts if one + other <= GPUS_OF_A_HOST}
            self._gpu_counts = tuple(sorted({*self._gpu_counts, *counts}))

    # Jobs come and are profiled

    def _arrive(self, task: Task, tasks: Iterator[Task]) -> None:
        super()._arrive(task, tasks)
        if task.trainee is None or not self._config.merging:
            return
        self._change(self._lives[task.job_id], recipe=task.trainee.recipe(profiled=False))

    def _tell_losses(self, life: Life, step: int) -> None:
        recipe = life.view.recipe
        if recipe is not None and life.task.trainee is not None:
            self._change(life, recipe=life.task.trainee.recipe(profiled=bool(recipe.pull), step=step))

    def _go(self, life: Life, run: SimulatedRun) -> None:
        if run.view.purpose == RunPurpose.PROFILE:
            self._profile(life, run)
            return
        trainee = life.task.trainee
        if not run.over and self._looks(life):
            life.work_ms += PROFILE_MS
            self._at(self._now_ms + PROFILE_MS, lambda: self._known(life, run))
        super()._go(life, run)
        if run.over or trainee is None or not self._config.merging:
            return
        pair = self._pairs.get(life.task.job_id)
        if pair is not None:
            self._watch_pair(pair, run)
        for share in SEEN_SHARES:
            in_ms = round(share * life.work_ms) - life.view.done_ms
            if in_ms > 0 and pair is None:
                step = round(share * trainee.steps)
                self._at(self._now_ms + in_ms, lambda step=step: self._if_trains(life, run, step))  # type: ignore[misc] # a default that binds a loop's value

    def _looks(self, life: Life) -> bool:
        """Whether it looks at its own task before its first step, and is known from then on."""
        first = self._config.merging and not life.outcome.faults
        return first and profiles_itself(life.view, self._config.rules.merge_own_least_ms)

    def _known(self, life: Life, run: SimulatedRun) -> None:
        if life.run is run and run.view.state == RunState.RUNNING:
            assert life.task.trainee is not None
            assert life.view.recipe is not None
            self._change(life, recipe=replace(life.view.recipe, pull=life.task.trainee.pull))

    def _if_trains(self, life: Life, run: SimulatedRun, step: int) -> None:
        if life.run is run and run.view.state == RunState.RUNNING and life.task.job_id not in self._pairs:
            self._tell_losses(life, step)

    def _profile(self, life: Life, run: SimulatedRun) -> None:
        if not run.over:
            self._change_run(run, RunState.RUNNING, running_since_ms=self._now_ms)
            self._change(life, state=JobState.RUNNING)
            self._at(self._now_ms + PROFILE_MS, lambda: self._profiled(life, run))

    def _profiled(self, life: Life, run: SimulatedRun) -> None:
        assert life.task.trainee is not None
        if not run.over:
            self._leave(life, run)
            self._change(life, state=JobState.WAITING, recipe=life.task.trainee.recipe(profiled=True))

    def _lose(self, run: SimulatedRun) -> None:
        if run.view.purpose == RunPurpose.TRAIN:
            super()._lose(run)
            return
        life = self._lives[run.view.job_ids[0]]
        assert life.view.recipe is not None
        self._leave(life, run)
        self._change(life, state=JobState.WAITING, recipe=replace(life.view.recipe, profile_tries=1))

    # Two become one

    def _merge(self, action: Merge) -> None:
        lead, companion = self._lives[action.job_id], self._lives[action.companion_id]
        source, target = lead.task.trainee, companion.task.trainee
        assert source is not None
        assert target is not None
        self._number += 1
        view = MergeView(
            merge_id=f"merge_{self._number:08d}",
            lead_id=action.job_id,
            companion_id=action.companion_id,
            mode=action.mode,
            gpus=action.gpus,
            row_version=1,
            score=action.score,
            gain=action.gain,
        )
        gain = true_gain(source, target)
        if action.mode == MergeMode.TOGETHER:
            gain = (gain + true_gain(target, source)) / 2
        own = _of_its_own(lead.view), _of_its_own(companion.view)
        pair = self._pairs[action.job_id] = _Pair(view, lead, companion, gain, own, None)
        self._board.put_merge(view)
        if pair.together:
            self._join(pair)
        elif lead.run is None:
            self._resize(lead, action.gpus)
        done_ms = lead.view.done_ms
        if lead.run is not None and lead.run.view.running_since_ms is not None:
            done_ms += self._now_ms - lead.run.view.running_since_ms
        epochs = min(source.epochs, target.epochs) if pair.together else source.epochs
        pair.judged_ms = done_ms + 2 * lead.work_ms // epochs
        if lead.run is not None:
            self._watch_pair(pair, lead.run)

    def _join(self, pair: _Pair) -> None:
        """From here on the lead's view and work are those of both."""
        lead, companion, gpus = pair.lead, pair.companion, pair.view.gpus
        lead.work_ms = round(
            (_on(lead, lead.work_ms, gpus) + _on(companion, companion.work_ms, gpus)) / (1 + pair.gain)
        )
        one, other = (replace(life.view, total_run_ms=life.predicted_ms) for life in (lead, companion))
        both, known = joined(one, other, pair.view), lead.view.total_run_ms is not None
        lead.predicted_ms = both.total_run_ms
        self._change(lead, **_of_its_own(both) | {"total_run_ms": both.total_run_ms if known else None})

    def _resize(self, life: Life, gpus: int) -> None:
        """The job will run on so many GPUs, for as long as it then takes."""
        life.work_ms = _on(life, life.work_ms, gpus)
        if life.predicted_ms is not None:
            life.predicted_ms = _on(life, life.predicted_ms, gpus)
        known = life.view.total_run_ms is not None
        resources = Resources(gpus_min=gpus, gpus_max=gpus)
        self._change(life, resources=resources, total_run_ms=life.predicted_ms if known else None)

    def _riders(self, life: Life) -> tuple[str, ...]:
        pair = self._pairs.get(life.task.job_id)
        both = pair is not None and pair.together
        return (*super()._riders(life), *((pair.companion.task.job_id,) if pair is not None and both else ()))

    def _change(self, life: Life, *, state: JobState | None = None, **changes: object) -> None:
        super()._change(life, state=state, **changes)
        pair = self._pairs.get(life.task.job_id)
        if pair is not None and pair.together and state is not None:
            super()._change(pair.companion, state=state)

    def _charge(self, life: Life, usd: float) -> None:
        """By the work of each: what stands for tokens here."""
        pair = self._pairs.get(life.task.job_id)
        if pair is None or not pair.together:
            super()._charge(life, usd)
            return
        mine, other = life.task.work_ms * life.task.gpus, pair.companion.task.work_ms * pair.companion.task.gpus
        super()._charge(life, usd * mine / (mine + other))
        super()._charge(pair.companion, usd * other / (mine + other))

    # What the monitor sees

    def _watch_pair(self, pair: _Pair, run: SimulatedRun) -> None:
        since_ms = run.view.running_since_ms
        if pair.judged_ms is not None and since_ms is not None:
            at_ms = since_ms + pair.judged_ms - pair.lead.view.done_ms
            self._at(max(self._now_ms, at_ms), lambda: self._judge(pair, run))

    def _judge(self, pair: _Pair, run: SimulatedRun) -> None:
        open_ = self._pairs.get(pair.view.lead_id) is pair
        if not open_ or pair.lead.run is not run or run.view.state != RunState.RUNNING or pair.judged_ms is None:
            return
        pair.judged_ms = None
        source, target = pair.lead.task.trainee, pair.companion.task.trainee
        assert source is not None
        assert target is not None
        if looks_fruitless(pair.gain, source, target):
            pair.view = replace(pair.view, row_version=2, fruitless_epochs=2)
            self._board.drop_merge(pair.view.lead_id)
            self._board.put_merge(pair.view)

    # One ends, or both

    def _finish(self, life: Life, run: SimulatedRun) -> None:
        if run.over or run.view.state != RunState.RUNNING:
            return
        pair = self._pairs.get(life.task.job_id)
        expected = self._finished_in_turn.pop(life.task.job_id, None)
        if expected is not None:
            self._board.learn(MergeMode.IN_TURN, *expected)
        if pair is None:
            super()._finish(life, run)
        elif pair.together:
            self._finish_both(pair, run)
        else:
            self._hand_over(pair, run)

    def _finish_both(self, pair: _Pair, run: SimulatedRun) -> None:
        lead, companion = pair.lead, pair.companion
        self._board.learn(pair.view.mode, pair.view.score, pair.gain)
        self._leave(lead, run)
        self._part(pair)
        mine, other = lead.outcome, companion.outcome
        other.started_ms, other.tiers, other.move_ms, other.moves = (
            mine.started_ms,
            mine.tiers,
            mine.move_ms,
            mine.moves,
        )
        for life in (lead, companion):
            life.outcome.work_ms, life.outcome.merged = lead.work_ms, pair.view.mode
            self._done(life)

    def _hand_over(self, pair: _Pair, run: SimulatedRun) -> None:
        """The companion goes on in the warm process, unless that is no place for its class: then it gets one of its
        own."""
        lead, companion = pair.lead, pair.companion
        node_id, gpus = run.view.node_id, run.gpus
        stays = is_of_its_class(companion.view, self._cloud.machines[node_id].view)
        if stays:
            self._end_run(lead, run)
        else:
            self._leave(lead, run)
        self._part(pair)
        for outcome in (lead.outcome, companion.outcome):
            outcome.merged = pair.view.mode
        lead.outcome.work_ms = lead.work_ms
        self._done(lead)
        self._resize(companion, pair.view.gpus)
        companion.work_ms = companion.outcome.work_ms = round(companion.work_ms / (1 + pair.gain))
        if companion.predicted_ms is not None:
            companion.predicted_ms = round(companion.predicted_ms / (1 + pair.view.gain))
            if companion.view.total_run_ms is not None:
                self._change(companion, total_run_ms=companion.predicted_ms)
        self._change(companion, turn_has_come=True)
        self._finished_in_turn[companion.task.job_id] = pair.view.score, pair.gain
        if not stays:
            return
        after = self._hold(companion, node_id, gpus, RunState.STARTING)
        self._change(companion, state=JobState.STARTING)
        self._at(self._now_ms + self._config.rules.merge_switch_ms, lambda: self._go(companion, after))

    def _split(self, action: Split) -> None:
        pair = self._pairs[action.job_id]
        for life, other in ((pair.lead, pair.companion), (pair.companion, pair.lead)):
            life.outcome.splits += 1
            self._change(life, split_from=life.view.split_from | {other.task.job_id})
        if pair.view.fruitless_epochs:
            self._board.learn(pair.view.mode, pair.view.score, pair.gain)
        if not pair.together:
            self._part(pair)
        elif pair.lead.run is None:
            self._go_apart(pair)
        else:
            run = self._stop(pair.lead)
            self._change(pair.lead, state=JobState.CHECKPOINTING)
            self._at(self._now_ms + self._scenario.moves.save_ms, lambda: self._saved_apart(pair, run))

    def _saved_apart(self, pair: _Pair, run: SimulatedRun) -> None:
        if not run.over:
            self._leave(pair.lead, run)
        self._go_apart(pair)

    def _go_apart(self, pair: _Pair) -> None:
        """Each has done its part of what both have done, and waits for a place of its own."""
        done = pair.lead.view.done_ms / pair.lead.work_ms
        self._part(pair)
        for life, own in zip((pair.lead, pair.companion), pair.own, strict=True):
            life.work_ms, life.predicted_ms = life.task.work_ms, life.task.predicted_ms
            done_ms = min(life.work_ms - 1, round(done * life.work_ms))
            self._change(life, state=_waits(life.view.state), done_ms=done_ms, **own)

    def _part(self, pair: _Pair) -> None:
        del self._pairs[pair.view.lead_id]
        self._board.drop_merge(pair.view.lead_id)


def _waits(state: JobState) -> JobState | None:
    """What becomes of a job that has no place: None where it has had none before."""
    return None if state in PLACEABLE_JOB_STATES else JobState.WAITING


def _of_its_own(view: JobView) -> dict[str, Any]:
    names = ("resources", "deadline_ms", "total_run_ms", "priority_class")
    return {name: getattr(view, name) for name in names}


def _on(life: Life, own_ms: int, gpus: int) -> int:
    """What takes so long on its own GPUs, on so many."""
    assert life.task.trainee is not None
    return max(1, round(own_ms * life.task.trainee.times(gpus)))
