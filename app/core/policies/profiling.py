"""Which waiting jobs `allpass` looks at before they train: a short run tells which other jobs their data helps.

A job is profiled once at most, before it has progress, and only where that can lead to a merge: another job of its kind
waits or trains that may be merged with it. For those that come later it looks at its task itself, as it begins to train
(`merging.own_profile`). Few are profiled at once, none that would be late for it, and of jobs with the same task only
one. What profiling costs, the job pays; while it lasts, the jobs that may be merged with it wait a moment.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from app.core import queue
from app.core.merging.own_profile import profiles_itself, task_of
from app.core.merging.partners import Kind, kind_of, modes_of
from app.core.model.job import JobKind, JobState
from app.core.model.merge import MergeMode
from app.core.model.run import RunPurpose, RunState
from app.core.model.snapshot import JobView, RunView
from app.core.policies import reasons
from app.core.policies.merge_market import Sides
from app.core.policies.plan_builder import PlanBuilder
from app.core.policies.weighing import merge_wait_ms
from app.core.progress import has_progress
from app.core.remaining import predicted_ms, remaining_ms

_SURELY = 10  # a job of which nobody knows how long it runs is profiled with so many times the time until its deadline


class Profiler:
    """Used once, after what can be merged is merged."""

    def __init__(self, desk: PlanBuilder, sides: Sides) -> None:
        self.desk, self.board, self.config, self.sides = desk, desk.board, desk.config, sides
        self.rules, self.now_ms = desk.config.rules, desk.now_ms
        self._live = [run for run in self.board.runs.values() if run.purpose == RunPurpose.PROFILE]
        self._until_ms = {run.job_ids[0]: self._ends_ms(run.job_ids[0], run.created_ms) for run in self._live}
        self._kinds: dict[Kind, list[JobView]] = defaultdict(list)
        for job in self.board.jobs.values():
            kind = kind_of(job)
            if kind is not None and not (self._is_merged(job) or job.leaving):
                self._kinds[kind].append(job)
        self._tasks = {task_of(job) for job in self.board.jobs.values() if self._is_looked_at(job)} - {None}

    def profile(self) -> None:
        """Gives places to those that are to be profiled; those that cannot be yet, or wait for one that is, wait."""
        for run in sorted(self._live, key=lambda one: one.run_id):
            self._give_up(run)
        waiting = [job for job in self.board.placeable() if job.recipe is not None and self.sides.is_free(job)]
        for job in waiting:
            if self._may_be_profiled(job) and self._has_partner(job):
                self._place(job)
        for job in waiting:
            if job.recipe is not None and job.recipe.pull and job.job_id not in self.desk.spoken_for:
                self._await_partner(job)

    # Who is profiled

    def _may_be_profiled(self, job: JobView) -> bool:
        recipe = job.recipe
        if recipe is None or recipe.pull or recipe.profile_tries or kind_of(job) is None or has_progress(job):
            return False
        if job.caps.max_wait_ms is not None:  # what comes after a look would be a wait, too
            return False
        if job.kind != JobKind.BATCH or not self.sides.is_free(job):
            return False
        begins_ms = self.sides.begins_ms(job)
        takes_ms, spare_ms = begins_ms + self.rules.merge_profile_ms, job.deadline_ms - self.now_ms
        if predicted_ms(job, None, self.now_ms) is None:
            return _SURELY * takes_ms <= spare_ms
        left_ms = remaining_ms(job, None, self.now_ms)
        return left_ms >= self.rules.merge_least_ms and takes_ms + begins_ms + left_ms <= spare_ms

    def _has_partner(self, job: JobView) -> bool:
        kind = kind_of(job)
        assert kind is not None
        others = self._kinds[kind][: self.rules.merge_most_jobs]
        return any(other.job_id != job.job_id and self._may_join(job, other) for other in others)

    def _is_looked_at(self, job: JobView) -> bool:
        """Whether its task is known soon: it is profiled, or has just begun to train and looks itself."""
        run = self.board.run_of(job.job_id)
        if run is None or job.job_id in self._until_ms:
            return run is not None
        if self.now_ms >= self._ends_ms(job.job_id, run.created_ms):
            return False
        as_it_began = replace(job, done_ms=0)  # what it has done since is part of the look
        return profiles_itself(as_it_began, self.rules.merge_own_least_ms)

    def _may_join(self, job: JobView, other: JobView) -> bool:
        """Whether `other` is known, or will or may be, and nothing forbids to merge both."""
        recipe = other.recipe
        assert recipe is not None
        waits = self.board.run_of(other.job_id) is None
        known = recipe.pull or other.job_id in self._until_ms or task_of(other) in self._tasks
        if not known and not (waits and self._may_be_profiled(other)):
            return False
        modes = modes_of(job, other, self.config.merge_modes)
        trains = not waits and other.job_id not in self._until_ms
        return bool(modes - {MergeMode.TOGETHER} if trains or has_progress(other) else modes)

    def _place(self, job: JobView) -> None:
        if len(self._until_ms) >= self.rules.merge_profile_most:
            if job.project_id in self._projects():  # else others would hold it up
                self._queue(job, "waits to be profiled: as many jobs as may be at once are")
            return
        if task_of(job) in self._tasks:
            self._queue(job, "waits for what is found of another job with the same task")
            return
        place = self.desk.ready_place(job)
        choice = self.desk.outlook.serverless.choose(job) if self.desk.outlook.may_start() else None
        if place is not None:
            given = self.desk.assign(job, place, purpose=RunPurpose.PROFILE)
        else:
            given = choice is not None and self.desk.start(job, choice, purpose=RunPurpose.PROFILE)
        if given:
            self.desk.spoken_for.add(job.job_id)
            self._until_ms[job.job_id] = self._ends_ms(job.job_id, self.now_ms)
            self._tasks |= {task_of(job)} - {None}

    def _projects(self) -> set[str]:
        """Whose jobs are profiled."""
        return {self.board.jobs[job_id].project_id for job_id in self._until_ms if job_id in self.board.jobs}

    def _queue(self, job: JobView, why: str) -> None:
        """It waits for its turn as long as for a partner, then it trains."""
        until_ms = job.submitted_ms + merge_wait_ms(self.config, job)
        if self.now_ms < until_ms:
            self._hold(job, until_ms, why)

    # Who waits for one that is profiled

    def _await_partner(self, job: JobView) -> None:
        """Until then, where it may be merged with it, and would not be late nor wait long beside its own time."""
        kind = kind_of(job)
        if kind is None or has_progress(job) or job.kind != JobKind.BATCH:
            return
        if predicted_ms(job, None, self.now_ms) is None:
            return
        left_ms = remaining_ms(job, None, self.now_ms)
        spare_ms = job.deadline_ms - self.now_ms - left_ms - self.sides.begins_ms(job)
        most_ms = min(spare_ms, self.rules.patience_share * left_ms, queue.may_wait_ms(job, self.now_ms))
        ends = [
            self._until_ms[other.job_id] - self.now_ms
            for other in self._kinds[kind]
            if other.job_id in self._until_ms and modes_of(job, other, self.config.merge_modes)
        ]
        waits_ms = min((one for one in ends if 0 < one <= most_ms), default=None)
        if waits_ms is not None and left_ms >= self.rules.merge_least_ms:
            self._hold(job, round(self.now_ms + waits_ms), "waits for a job of the same base model that is profiled")

    def _hold(self, job: JobView, until_ms: int, why: str) -> None:
        self.desk.spoken_for.add(job.job_id)
        self.desk.wake(until_ms)
        self.desk.wait(job, f"{why}, up to {reasons.duration(until_ms - self.now_ms)}")

    # What lasts too long

    def _give_up(self, run: RunView) -> None:
        job = self.board.jobs.get(run.job_ids[0])
        if (
            job is None
            or run.state != RunState.RUNNING
            or job.state != JobState.RUNNING
            or run.running_since_ms is None
        ):
            return
        most_ms = self.rules.merge_profile_most_ms
        if self.now_ms < run.running_since_ms + most_ms:
            self.desk.wake(run.running_since_ms + most_ms)
        else:
            why = f"is not profiled any longer: that has taken {reasons.duration(most_ms)}, and nobody knows the end"
            self.desk.demote(run, job, [job], why)

    def _ends_ms(self, job_id: str, begun_ms: int) -> int:
        job = self.board.jobs.get(job_id)
        begins_ms = 0.0 if job is None else self.sides.begins_ms(job)
        return round(begun_ms + begins_ms + self.rules.merge_profile_ms)

    def _is_merged(self, job: JobView) -> bool:
        return job.job_id in self.board.merges or job.job_id in self.board.companions
