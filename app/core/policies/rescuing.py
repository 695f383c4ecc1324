"""Rule 8 of `allpass`: a job that would miss the deadline that its owner stated leaves for GPUs that keep it."""

from __future__ import annotations

from app.core.due import Due, begins_ms
from app.core.model.job import JobState
from app.core.model.node import Tier
from app.core.model.plan import ActionKind
from app.core.model.snapshot import JobView, RunView
from app.core.policies import reasons
from app.core.policies.moving import Mover, share_micros
from app.core.policies.placement import Place
from app.core.remaining import predicted_ms, unkept_ms

_MOST_JOBS = 200
"""So many are looked at in one decision: the earliest deadlines first. Where more are late, all are short of GPUs."""


class Rescuer:
    """Looks at the runs of one decision, before the `Mover`; used once."""

    def __init__(self, mover: Mover) -> None:
        self.mover, self.desk, self.board = mover, mover.desk, mover.board
        self.config, self.outlook, self.now_ms = mover.config, mover.outlook, mover.now_ms

    def rescue_runs(self) -> None:
        """Each late job for itself: the cheapest faster GPUs that are there, or come, or can be rented."""
        can = self.mover.makes_before_break and self.outlook.may(ActionKind.PROVISION)
        if not can or self.config.rules.late_most <= 0 or not self.board.has_speeds:
            return
        for job_id in self.board.columns.late_runs(self.now_ms, _MOST_JOBS):
            run = self.board.run_of(job_id)
            if run is None or run.tier == Tier.OWN or len(run.job_ids) > 1:
                continue
            for job in self.mover.movable(run):
                if job.deadline_given and job.speeds is not None and job.state == JobState.RUNNING:
                    self._rescue(job, run)

    def _rescue(self, job: JobView, run: RunView) -> None:
        price, known = self.mover.price(job, run), predicted_ms(job, run, self.now_ms) is not None
        if price is None or not known or self.mover.rests(run) or job.speeds is None:
            return
        left_ms, moves = self.desk.left_ms(job, run), self.config.moves
        pause_ms = moves.save_ms + moves.load_ms + unkept_ms(job, run, self.now_ms)
        due = Due(job.speeds, left_ms, job.deadline_ms - self.now_ms - pause_ms, runs=True)
        most = price * self.config.rules.late_most
        place = self._place(job, due, most)
        if place is None:
            self._rent(job, run, due, most)
            return
        self.desk.spoken_for.add(job.job_id)
        if place.node is not None and place.is_ready:
            self.desk.migrate(run, job, place, self._why(job, due))
        else:
            place.take(job)

    def _place(self, job: JobView, due: Due, most: float) -> Place | None:
        """The cheapest that is there and in time; else the first to come."""
        for places in (self.desk.fleet.ready_places(job, most), self.desk.fleet.coming_places(job, most)):
            in_time = [one for one in places if self._is_in_time(due, one.gpu_type, one.expected_ready_ms)]
            if in_time:
                return min(in_time, key=lambda one: (one.weighed_share_micros(job), one.coming_rank))
        return None

    def _is_in_time(self, due: Due, gpu_type: str, ready_ms: int) -> bool:
        begins_ms = max(0, ready_ms - self.now_ms)
        for in_ms in due.changes_ms(gpu_type, begins_ms):
            self.desk.wake(self.now_ms + in_ms)
        return due.is_in_time(gpu_type, begins_ms)

    def _rent(self, job: JobView, run: RunView, due: Due, most: float) -> None:
        """What the market would have chosen for the job as it is, if that is in time after the move, too."""
        if job.not_before_ms > self.now_ms:
            self.desk.wake(job.not_before_ms)
            return
        choice = self.outlook.to_be_had(job, due.left_ms)
        if choice is None or not choice.can_be_had or share_micros(choice.offer, job) > most:
            return
        offer = choice.offer
        is_in_time = self._is_in_time(due, offer.gpu_type, self.now_ms + begins_ms(offer))
        if is_in_time and self.desk.provision(job, self._why(job, due), left_ms=due.left_ms):
            self.desk.spoken_for.add(job.job_id)

    def _why(self, job: JobView, due: Due) -> str:
        late_ms = self.now_ms + due.left_ms - job.deadline_ms
        return f"the job would be done {reasons.duration(late_ms)} after its deadline where it is, and is in time there"
