"""Refuse a cost limit that cannot pay for anything, when it is set and not when the job has waited for nothing."""

from __future__ import annotations

from app.core.model.money import Money
from app.core.model.offer import Offer
from app.db.connection import Connection
from app.db.engine import Database
from app.db.offers.listed import cheapest_offer
from app.errors import InvalidInput
from app.ports.clock import Clock
from app.settings import Settings

_KEEP_MS = 5_000
_MINUTES_PER_HOUR = 60


def check_cost_cap(max_cost: Money, cheapest: Offer | None, param: str) -> None:
    """Raises InvalidInput naming `param` and the offer when not even a minute of it could be paid.

    Where no offer is known, every limit is let through: something cheap may come.
    """
    if cheapest is None:
        return
    minute = Money(-(-cheapest.price_per_hour.micros // _MINUTES_PER_HOUR))
    if max_cost < minute:
        raise InvalidInput(
            f"{param}: {max_cost} does not pay for a minute of the cheapest offer known, {cheapest.key} "
            f"({cheapest.gpu_type} at {cheapest.price_per_hour}/h, {minute} a minute); allow at least {minute}",
            param=param,
        )


async def read_cheapest(connection: Connection, settings: Settings, now_ms: int) -> Offer | None:
    """The cheapest offer by the hour that was listed lately."""
    return await cheapest_offer(connection, now_ms=now_ms, max_age_ms=settings.offers_gone_after_ms)


class CheapestOffer:
    """The same, asked at most every few seconds: submissions are many, and prices change by the minute."""

    def __init__(self, database: Database, settings: Settings, clock: Clock) -> None:
        self._database, self._settings, self._clock = database, settings, clock
        self._read_ms: int | None = None
        self._offer: Offer | None = None

    async def now(self) -> Offer | None:
        now_ms = self._clock.now_ms()
        if self._read_ms is None or not 0 <= now_ms - self._read_ms < _KEEP_MS:
            async with self._database.transaction() as connection:
                self._offer = await read_cheapest(connection, self._settings, now_ms)
            self._read_ms = now_ms
        return self._offer
