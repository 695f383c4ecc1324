"""Prices of a company that has no interface to ask for them: a list with a date, and what is known better."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.core.model.money import Money


@dataclass(frozen=True, slots=True)
class ListedPrice:
    """What one thing costs per hour. `gpu_type`: the offers that it is a part of; None: of all offers.

    `setting`: the price that the settings of this installation put in its place.
    """

    name: str
    published: Money
    gpu_type: str | None = None
    setting: Money | None = None


@dataclass(frozen=True, slots=True)
class PriceList:
    """`as_of`: the day on which these prices were published. Days are written as 2026-05-07, and so in their order."""

    as_of: str
    prices: tuple[ListedPrice, ...]


@dataclass(frozen=True, slots=True)
class OwnPrice:
    """A price that an owner of the installation has set. `set_by`: the API key."""

    name: str
    per_hour: Money
    as_of: str
    set_ms: int
    set_by: str


class PriceSource(StrEnum):
    """Whose word a price is, the one that counts first."""

    OWNER = "owner"
    SETTING = "setting"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class PriceInUse:
    """All that is known of one price. Without `used`, nothing that is rented has a part of this name."""

    name: str
    gpu_type: str | None = None
    published: Money | None = None
    published_on: str | None = None
    setting: Money | None = None
    own: OwnPrice | None = None

    @property
    def source(self) -> PriceSource | None:
        if self.published is None:
            return None
        if self.own is not None:
            return PriceSource.OWNER
        return PriceSource.LIST if self.setting is None else PriceSource.SETTING

    @property
    def used(self) -> Money | None:
        if self.source is PriceSource.OWNER and self.own is not None:
            return self.own.per_hour
        return self.setting if self.source is PriceSource.SETTING else self.published

    @property
    def as_of(self) -> str | None:
        """Since when the price in use is known. None for one of the settings, which have no date."""
        if self.source is PriceSource.OWNER and self.own is not None:
            return self.own.as_of
        return self.published_on if self.source is PriceSource.LIST else None
