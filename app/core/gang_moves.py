"""When a job on several machines leaves them for cheaper ones (ADR 0115). Pure.

All of the others are rented while it trains, or none; it leaves once all of them are ready. What makes that worth it is
what makes a job on one machine go from one rented machine to another (`app.core.policies.moving`, rule 4), counted over
all machines: whichever of them fails, the job does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.core.gang_sites import GangRental, place_in_words
from app.core.job_prices import arrival_cost, job_micros
from app.core.model.job import JobState
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.plan import ActionKind
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.policies.reasons import duration
from app.core.policies.weighing import break_even_ms
from app.core.policy import PolicyConfig
from app.core.remaining import predicted_ms, ran_ms, remaining_ms, unkept_ms

_USES = frozenset({ActionKind.PROVISION, ActionKind.DEMOTE, ActionKind.MIGRATE})  # both are paid for a while


def hourly(machines: Sequence[Offer | NodeView], job: JobView) -> int:
    """What an hour of the job's work costs on all of these together, in micro-dollars."""
    return sum(job_micros(one, job) for one in machines)


@dataclass(slots=True)
class Stay:
    """A job on several machines where it is: its leading run, and all of its machines. `wakes`: when time alone may
    have changed an answer."""

    job: JobView
    lead: RunView
    machines: Sequence[NodeView]
    config: PolicyConfig
    now_ms: int
    wakes: list[int] = field(default_factory=list)

    @property
    def hourly(self) -> int:
        return hourly(self.machines, self.job)

    @property
    def most_hourly(self) -> int:
        """What other machines may cost at most: less by the share that is asked for."""
        return min(self.hourly - 1, int(self.hourly * (1 - self.config.rules.chase_drop)))

    def may_move(self) -> bool:
        """Whether it trains on machines that were rented, may be taken off them, and has not moved just now."""
        job, since_ms = self.job, self.lead.trains_since_ms
        if job.state is not JobState.RUNNING or job.leaving or job.stays or since_ms is None:
            return False
        if not self.config.capabilities >= _USES or any(one.tier is Tier.OWN for one in self.machines):
            return False
        rests_ms = int(self._pause_ms / self.config.rules.chase_pause_share)
        until_ms = max(job.not_moved_before_ms, since_ms + rests_ms)
        if until_ms > self.now_ms:
            self.wakes.append(until_ms)
        return until_ms <= self.now_ms

    def is_worth(self, rental: GangRental) -> bool:
        """Whether a move there saves more than it costs before the job is done, and makes no deadline missed."""
        there: Sequence[Offer | NodeView] = (*rental.offers, *rental.has)
        job, target = self.job, hourly(there, self.job)
        if target > self.most_hourly:
            return False
        lost_ms = unkept_ms(job, self.lead, self.now_ms)
        arrival = sum(map(arrival_cost, rental.offers))
        worth_ms = break_even_ms(self.config, self.hourly, target, lost_ms, arrival)
        left_ms = remaining_ms(job, self.lead, self.now_ms)
        if worth_ms is None or self._is_risky(there, target, worth_ms, left_ms):
            return False
        pause_ms = self._pause_ms + lost_ms + max(one.arrival_ms for one in there)
        worth_ms = max(worth_ms, int(pause_ms / self.config.rules.move_pause_share))
        if predicted_ms(job, self.lead, self.now_ms) is None:
            worth_ms = max(worth_ms, self.config.rules.least_run_ms)
            ran = ran_ms(job, self.lead, self.now_ms)
            if ran <= worth_ms:
                self.wakes.append(self.now_ms + worth_ms + 1 - ran)
                return False
        spare_ms = job.deadline_ms - self.now_ms - left_ms
        return left_ms > worth_ms and not 0 <= spare_ms < pause_ms

    def _is_risky(self, there: Sequence[Offer | NodeView], target: int, worth_ms: int, left_ms: int) -> bool:
        """Whether one of them fails before the move has paid for itself, on average; or the share by which they cost
        less is below the chance that one of them fails before the job is done, and none would have here."""
        rate = _failures_per_ms(there)
        more = max(0.0, rate - _failures_per_ms(self.machines))
        return rate * worth_ms >= 1 or target > (1 - left_ms * more) * self.hourly

    def why(self, rental: GangRental) -> str:
        """In words: what it costs there and here, and how long that counts."""
        left = duration(remaining_ms(self.job, self.lead, self.now_ms))
        there = Money(hourly((*rental.offers, *rental.has), self.job))
        place = place_in_words(rental.site)
        return (
            f"its {len(self.machines)} machines cost {there}/h at {place}, {Money(self.hourly)}/h here; {left} are left"
        )

    @property
    def _pause_ms(self) -> int:
        return self.config.moves.save_ms + self.config.moves.load_ms


def _failures_per_ms(machines: Sequence[Offer | NodeView]) -> float:
    """Of all of them together, as any of them ends the run of all."""
    return sum(1 / one.mean_life_ms for one in machines if one.mean_life_ms)
