"""Who of a machine's jobs gives up a GPU, who has one more, and who of those that wait comes first (ADR 0119). Pure.

What the rules of the paper say of a pool (`pool`), for jobs that train already and whose owners lend GPUs: interactive
jobs first, parts from whoever loses least, more to whoever gains most. Nobody is ended here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core import queue
from app.core.elastic.pool import UNTRIED
from app.core.elastic.profile import NOISE, SpeedProfile
from app.core.elastic.queues import PriorityQueue, QueueThresholds, expected_remaining_s
from app.core.elastic.rules import MENDED, ElasticRules
from app.core.elastic.runs import ElasticRun
from app.core.elastic.scaling import gain_per_gpu, is_worth_resizing, loss_per_gpu
from app.core.elastic.standing import JobUse, QueueStanding
from app.core.model.snapshot import JobView

NO_USE, COLD = JobUse(), QueueThresholds()
_DIGITS = 9  # what differs by less is one number that was reached on two ways


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """What is known of the jobs of some machines: by job where they stand, what they have had and whose they are; by
    run how fast they are at each size, and how long they are predicted to run on as they are; by project when jobs
    leave a queue. Of whom nothing is known stands with the batch jobs, and is faster with each GPU."""

    rules: ElasticRules = MENDED
    standings: Mapping[str, QueueStanding] = field(default_factory=dict)
    uses: Mapping[str, JobUse] = field(default_factory=dict)
    profiles: Mapping[str, SpeedProfile] = field(default_factory=dict)
    thresholds: Mapping[str, QueueThresholds] = field(default_factory=dict)
    projects: Mapping[str, str] = field(default_factory=dict)
    remaining_s: Mapping[str, float] = field(default_factory=dict)
    now_ms: int = 0

    def line_key(self, job: JobView) -> tuple[object, ...]:
        """Guaranteed jobs before spot jobs, then by queue; in a queue whoever is due first (`mended`) or came first
        (`literal`). Deadlines are what owners were promised, so they come before classes of service."""
        is_spot, *due = queue.edf_key(job)
        order = due if self.rules.least_served else [job.submitted_ms, job.job_id]
        return (is_spot, self._queue(job.job_id), *order)

    def is_interactive(self, job_id: str) -> bool:
        return self._queue(job_id) is PriorityQueue.INTERACTIVE

    def may_lend(self, run: ElasticRun, size: int) -> bool:
        """Whether a run of this size may be left with one GPU less."""
        standing = self.standings.get(run.job_id)
        return size > run.least and (standing is None or not standing.keeps_all)

    def lender_key(self, run: ElasticRun, size: int) -> tuple[float, ...]:
        """Least first: whoever meets its deadline all the same, the last queue, the smallest loss, whoever need not
        begin again, the largest holder, whoever was served most."""
        profile = self._profile(run)
        sizes, speeds = _curve(profile, run)
        loss = loss_per_gpu(sizes, speeds, size - sizes[0], self.rules)
        late, again_s = self.is_late(run, size - 1), run.resize_s if run.restarts else 0.0
        return (late, -self._queue(run.job_id), round(loss, _DIGITS), again_s, -size, -self._class(run.job_id))

    def growth_key(self, run: ElasticRun, size: int, idle: int) -> tuple[float, ...]:
        """Least first: interactive jobs, whoever would be late, the largest gain, the smallest part of its own."""
        gain = round(self._gain(run, size, idle)[0], _DIGITS)
        return (not self.is_interactive(run.job_id), not self.is_late(run, size), -gain, size / run.own)

    def is_late(self, run: ElasticRun, size: int) -> bool:
        """Whether its job would miss the deadline that its owner gave, with so many GPUs from now on. False where it is
        not known how long it runs."""
        remaining_s = self.remaining_s.get(run.run_id)
        if run.due_ms is None or remaining_s is None or size < 1:
            return False
        profile = self._profile(run)
        now, then = profile.speed(run.held.wanted), profile.speed(size)
        return then <= 0 or remaining_s * now / then > (run.due_ms - self.now_ms) / 1000

    def grows(self, run: ElasticRun, size: int, idle: int) -> bool:
        """Whether a run of this size is to have one GPU more of so many that are idle. What its owner counts on it
        always has back; more of a range has to bring something, and more than the change costs. It is given to nobody
        who begins on it after a save that comes nobody knows when: until then it would be paid for and idle."""
        if size < run.asked:
            return True
        if run.told.after_save:
            return False
        gain, after = self._gain(run, size, idle)
        if gain <= 0:
            return False
        if not self.rules.heeds_costs:
            return True
        return is_worth_resizing(self._profile(run).speed(size), after, self._remaining_s(run), run.resize_s)

    def useful(self, run: ElasticRun) -> int:
        """As many of the GPUs that it has as make it faster, of a range: the smallest size, from what its owner counts
        on, at which it was measured and was as fast as now. As many as it has where nothing else was measured."""
        size, profile = run.held.wanted, self._profile(run)
        if not run.is_range or size not in profile.measured:
            return size
        known = _known(profile, run, size)
        return min((one for one in known if not _is_faster(profile, size, one)), default=size)

    def _remaining_s(self, run: ElasticRun) -> float:
        job_id, predicted_s = run.job_id, self.remaining_s.get(run.run_id)
        if predicted_s is not None:
            return predicted_s
        standing, use = self.standings.get(job_id), self.uses.get(job_id, NO_USE)
        if standing is None:
            return math.inf
        thresholds = self.thresholds.get(self.projects.get(job_id, ""), COLD)
        return expected_remaining_s(standing.place(use, self.rules), use.held_s, thresholds)

    def _gain(self, run: ElasticRun, size: int, idle: int) -> tuple[float, float]:
        """Per GPU, of as many more of those that are idle as bring most for each of them, and the speed with these.
        Where a step is cut into parts one more may bring nothing, and two half as much again. Below the noise of a
        measurement it is none; a size that was never had may be tried, after all gains that are known, for it may be
        as fast as its GPUs are many."""
        profile = self._profile(run)
        sizes, speeds = _curve(profile, run)
        best = (0.0, 0.0)
        literal = self.rules.by_own_second_gpu  # which looks at one more alone
        for more in range(1, 1 + min(1 if literal else idle, run.own - size)):
            after = profile.speed(size + more)
            gain = (after - profile.speed(size)) / more / speeds[0]
            if literal:
                gain = gain_per_gpu(sizes, speeds, size - sizes[0], self.rules)
            if size + more not in profile.measured:
                gain, after = max(gain, UNTRIED), max(after, profile.speed(size) * (size + more) / size)
            elif not all(_is_faster(profile, size + more, one) for one in {size, *_known(profile, run, size + more)}):
                continue  # it would be given up again, for one of these
            best = max(best, (gain, after), key=lambda one: one[0])
        return best

    def _queue(self, job_id: str) -> PriorityQueue:
        standing = self.standings.get(job_id)
        return PriorityQueue.BATCH if standing is None else standing.queue

    def _class(self, job_id: str) -> int:
        standing = self.standings.get(job_id)
        return 0 if standing is None else standing.service_class(self.uses.get(job_id, NO_USE), self.rules)

    def _profile(self, run: ElasticRun) -> SpeedProfile:
        """Of code that is restarted nothing is known: its batch follows its GPUs, so that it may take as many steps a
        second with eight as with one, and read eight times the rows."""
        known = None if run.restarts else self.profiles.get(run.run_id)
        return known if known is not None else SpeedProfile(run.asked)


def _curve(profile: SpeedProfile, run: ElasticRun) -> tuple[list[int], list[float]]:
    """Every size that the run may have, and its speed there."""
    sizes = list(range(min(run.least, run.held.wanted), max(run.own, run.held.wanted) + 1))
    return sizes, [profile.speed(size) for size in sizes]


def _known(profile: SpeedProfile, run: ElasticRun, size: int) -> list[int]:
    """The smaller sizes that were measured, from what its owner counts on."""
    return [one for one in range(run.asked, size) if one in profile.measured]


def _is_faster(profile: SpeedProfile, larger: int, smaller: int) -> bool:
    """By more than the noise with which the larger one was measured. One rule for growing and for giving up, so that
    nobody does the one after the other."""
    noise = max(NOISE, profile.measured[larger].noise)
    return profile.measured[larger].speed * (1 - noise) > profile.speed(smaller)
