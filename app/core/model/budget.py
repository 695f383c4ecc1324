"""What may be spent in an hour, a day or a month, and what of it is left for one job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.core.model.money import Money


class Period(StrEnum):
    """Of UTC: an hour, a day or a month of the calendar."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that is spent in each period. `project_id` None: by the whole installation; `key_id`: by jobs that this
    API key has submitted; `provider`: at this provider."""

    budget_id: str
    project_id: str | None
    key_id: str | None
    provider: str | None
    period: Period
    amount: Money

    def covers(self, project_id: str, key_id: str | None, provider: str) -> bool:
        """Whether what a job of this project and key costs at a provider counts."""
        return self.covers_job(project_id, key_id) and self.provider in (None, provider)

    def covers_job(self, project_id: str, key_id: str | None) -> bool:
        """Whether what a job costs counts, at this budget's provider or anywhere."""
        return self.project_id in (None, project_id) and self.key_id in (None, key_id)

    @property
    def name(self) -> str:
        """In words: `the project's budget of $5.00 a day at vast`."""
        whose = "the installation's" if self.project_id is None else "the project's"
        for_key = "" if self.key_id is None else f" for {self.key_id}"
        at = "" if self.provider is None else f" at {self.provider}"
        every = "an hour" if self.period is Period.HOUR else f"a {self.period}"
        return f"{whose} budget{for_key} of {self.amount} {every}{at}"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a budget leaves for a job at one provider (None: at all of them), where that is less than a machine may
    cost. `goes_on`: when there is more, in words."""

    provider: str | None
    left: Money
    name: str
    goes_on: str

    @property
    def used_up(self) -> bool:
        """Whether nothing is left."""
        return self.left.micros <= 0

    def refuses(self, provider: str, least: Money) -> bool:
        """Whether a machine of this provider that costs at least so much is too dear."""
        return self.provider in (None, provider) and (self.used_up or least > self.left)

    def why_not(self, least: Money) -> str:
        """Why a machine that costs at least so much is refused. What is left is not told: it may be of all projects."""
        if self.used_up:
            return f"{self.name} is used up: {self.goes_on}"
        return f"{self.name} has less left than the first billing unit of the machine, {least}: {self.goes_on}"
