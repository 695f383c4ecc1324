"""What may be spent in an hour, a day or a month: by a project, by an API key's jobs, at a provider. Pure.

Periods are those of UTC. What counts is what the meter has booked in the period, with what open machines have cost
since, and at least the first billing unit of each. Each budget holds by itself: where several cover a job, none of them
is passed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from app.core.calendar import DAY_MS, HOUR_MS, month_begins_ms, next_month_begins_ms, on_the_calendar_ms, written
from app.core.limits import OpenMachine, least_of
from app.core.model.budget import Allowance, Budget, Period
from app.core.model.merge import MergeMode
from app.core.model.money import ZERO, Money
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, Snapshot

_NEAR_PERCENT = 80


@dataclass(frozen=True, slots=True)
class PaidMachine:
    """A machine whose bill is open, and who pays for it: the key is that of the job that it was rented for."""

    project_id: str
    key_id: str | None
    provider: str
    machine: OpenMachine


@dataclass(frozen=True, slots=True)
class BudgetStanding:
    """A budget and what counts against it now. `per_hour`: what its open machines cost together."""

    budget: Budget
    spent: Money
    per_hour: Money
    now_ms: int

    @property
    def left(self) -> Money:
        """Never less than nothing, however far the budget was passed, or lowered."""
        return max(self.budget.amount - self.spent, ZERO)

    @property
    def used_up(self) -> bool:
        """A budget of nothing is used up from the first moment on."""
        return self.left == ZERO

    @property
    def near(self) -> bool:
        """Whether its owner is warned: four fifths are spent, and not yet all."""
        return not self.used_up and 100 * self.spent.micros >= _NEAR_PERCENT * self.budget.amount.micros

    @property
    def begins_ms(self) -> int:
        """Of the present period."""
        return begins_ms(self.budget.period, self.now_ms)

    @property
    def ends_ms(self) -> int:
        """When what is spent counts from nothing again."""
        return ends_ms(self.budget.period, self.now_ms)

    @property
    def foreseen(self) -> Money:
        """What will have been spent when the period ends, if what is rented now stays until then."""
        return Money(self.spent.micros + self.per_hour.micros * max(0, self.ends_ms - self.now_ms) // HOUR_MS)

    @property
    def goes_on(self) -> str:
        """When there is more, and who can give more, in words."""
        budget = self.budget
        who = "an owner of the installation" if budget.project_id is None else "somebody"
        scope = " --installation" if budget.project_id is None else ""
        key = "" if budget.key_id is None else f" --key {budget.key_id}"
        provider = "" if budget.provider is None else f" --provider {budget.provider}"
        command = f"allpass budget set --period {budget.period} --amount DOLLARS{scope}{key}{provider}"
        return f"goes on by itself at {written(self.ends_ms)}, or when {who} allows more ({command})"

    @property
    def why_held(self) -> str:
        """Of one that is used up, in words. The same at every look, as long as nobody changes the budget."""
        return f"{self.budget.name} is used up: {self.goes_on}"

    def why_refused(self, provider: str, least: Money) -> str | None:
        """Why a machine there that costs at least so much is not rented, in words; None if it may be."""
        allowance = self.allowance()
        return allowance.why_not(least) if allowance.refuses(provider, least) else None

    def with_one_more(self, one: PaidMachine) -> BudgetStanding:
        """As it stands when this machine was rented as well."""
        if not self.budget.covers(one.project_id, one.key_id, one.provider):
            return self
        spent = self.spent + one.machine.unbooked(self.now_ms)
        return replace(self, spent=spent, per_hour=self.per_hour + one.machine.price_per_hour)

    def allowance(self) -> Allowance:
        """As decisions see it."""
        return Allowance(self.budget.provider, self.left, self.budget.name, self.goes_on)


def begins_ms(period: Period, now_ms: int) -> int:
    """When the present period began. A clock before 1970, or beyond every calendar, has its first or last one."""
    at_ms = on_the_calendar_ms(now_ms)
    if period is Period.MONTH:
        return month_begins_ms(at_ms)
    return at_ms - at_ms % (HOUR_MS if period is Period.HOUR else DAY_MS)


def ends_ms(period: Period, now_ms: int) -> int:
    """When the next period begins."""
    begun_ms = begins_ms(period, now_ms)
    if period is Period.MONTH:
        return next_month_begins_ms(begun_ms)
    return begun_ms + (HOUR_MS if period is Period.HOUR else DAY_MS)


def standing(budget: Budget, booked: Money, machines: Iterable[PaidMachine], now_ms: int) -> BudgetStanding:
    """`booked`: what the meter has booked in the present period. Of a machine, what is not booked is counted, too."""
    spent, per_hour = booked.micros, 0
    for one in machines:
        if budget.covers(one.project_id, one.key_id, one.provider):
            spent += one.machine.unbooked(now_ms).micros
            per_hour += one.machine.price_per_hour.micros
    return BudgetStanding(budget, Money(spent), Money(per_hour), now_ms)


def that_holds(
    standings: Iterable[BudgetStanding], project_id: str, key_id: str | None, providers: Collection[str]
) -> BudgetStanding | None:
    """The budget that keeps a job from running at these providers (none of them: from running anywhere), if one does:
    of several, the one that lasts longest, for until then the others help nothing."""
    held = [
        one
        for one in standings
        if one.used_up
        and one.budget.covers_job(project_id, key_id)
        and (one.budget.provider is None or one.budget.provider in providers)
    ]
    return max(held, key=lambda one: (one.ends_ms, one.budget.budget_id), default=None)


def within_budgets(seen: Snapshot, standings: Sequence[BudgetStanding], key_of: Mapping[str, str]) -> Snapshot:
    """The snapshot with what budgets leave for each job, where that is less than a machine may cost; of jobs that
    train together, for both. `key_of`: the API key that submitted a job, by job."""
    rules = {(one.provider, one.tier): one for one in seen.traits}
    dearest = max((least_of(offer, rules) for offer in seen.offers), default=ZERO)
    short = [one for one in standings if one.used_up or one.left < dearest]
    if not short:
        return seen

    @cache
    def left_for(project_id: str, key_id: str | None) -> tuple[Allowance, ...]:
        return tuple(one.allowance() for one in short if one.budget.covers_job(project_id, key_id))

    trains_along = {one.lead_id: one.companion_id for one in seen.merges if one.mode is MergeMode.TOGETHER}

    def allowed(job: JobView) -> JobView:
        both = [job.job_id, *filter(None, [trains_along.get(job.job_id)])]
        left = dict.fromkeys(one for who in both for one in left_for(job.project_id, key_of.get(who)))
        return replace(job, allowances=tuple(left)) if left else job

    jobs = tuple(allowed(job) for job in seen.jobs)
    spent_up = {job.project_id for job in jobs if that_holds(short, job.project_id, None, ()) is not None}
    return replace(seen, jobs=jobs, no_ahead=tuple(sorted({*seen.no_ahead, *spent_up})))


def refused_by(
    standings: Iterable[BudgetStanding], project_id: str, key_id: str | None, offer: Offer, least: Money
) -> str | None:
    """Why a machine of this offer, which costs at least so much, is not rented for this job now; None if it may be."""
    covering = (one for one in standings if one.budget.covers_job(project_id, key_id))
    return next((why for one in covering if (why := one.why_refused(offer.provider, least)) is not None), None)
