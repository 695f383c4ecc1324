"""Prices that no company tells: the lists of the adapters, and what owners set in their place."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Any

from sqlalchemy import Row, delete, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.dated_prices import MOST_PER_HOUR, DatedPrices, prices_in_use
from app.core.model.money import Money
from app.core.model.price_list import OwnPrice, PriceList
from app.db.arrays import insert_rows, is_one_of
from app.db.engine import Database
from app.db.tables import own_prices, provider_states
from app.db.unreadable import RowReading
from app.errors import Transient, Unavailable

log = logging.getLogger(__name__)


class DatabaseOwnPrices:
    """Implements `app.ports.prices.OwnPrices` for one provider, across all processes that share the database."""

    def __init__(self, database: Database, provider: str) -> None:
        self._database = database
        self._provider = provider
        self._known: Mapping[str, Money] | None = None
        self._unread: frozenset[str] = frozenset()

    async def known(self) -> Mapping[str, Money]:
        """See `app.ports.prices.OwnPrices.known`. A price that cannot be read stays as it was last known."""
        reading = RowReading()
        try:
            async with self._database.statement() as connection:
                read = await own_prices_of(connection, self._provider, reading)
        except Unavailable as error:
            if self._known is None:
                raise Transient(
                    f"prices of {self._provider} that an owner set are not known: {error.message}"
                ) from error
            return self._known
        except SQLAlchemyError:  # the table is not as this release knows it
            log.exception("prices of %s that an owner set cannot be read; those last known count", self._provider)
            return self._known or {}
        unread = {name: error for (_table, name), error in reading.unread.items()}
        before = self._known or {}
        kept = {name: before[name] for name in unread if name in before}
        self._known = kept | {one.name: one.per_hour for one in read}
        self._tell(unread)
        return self._known

    def _tell(self, unread: Mapping[str, Exception]) -> None:
        """Once, not with every listing."""
        for name in sorted(unread.keys() - self._unread):
            log.error("the price of %s at %s that an owner set cannot be read: %s", name, self._provider, unread[name])
        self._unread = frozenset(unread)


async def own_prices_of(connection: AsyncConnection, provider: str, reading: RowReading) -> list[OwnPrice]:
    """Of one provider, those that can be read; the others are noted by their names."""
    rows = await connection.execute(select(own_prices).where(own_prices.c.provider == provider))
    read = (reading.of(own_prices.name, row.name, partial(_own_price, row)) for row in rows)
    return [one for one in read if one is not None]


async def set_own_prices(connection: AsyncConnection, provider: str, prices: Collection[OwnPrice]) -> None:
    """Each in the place of an earlier one of its name; the others stay."""
    rows = [
        {
            "provider": provider,
            "name": one.name,
            "micros_per_hour": one.per_hour.micros,
            "as_of": one.as_of,
            "set_by": one.set_by,
            "set_ms": one.set_ms,
        }
        for one in sorted(prices, key=lambda one: one.name)
    ]
    fresh = insert_rows(own_prices, rows)
    changed = {name: fresh.excluded[name] for name in ("micros_per_hour", "as_of", "set_by", "set_ms")}
    await connection.execute(
        fresh.on_conflict_do_update(index_elements=[own_prices.c.provider, own_prices.c.name], set_=changed)
    )


async def delete_own_prices(connection: AsyncConnection, provider: str, names: Collection[str] | None) -> None:
    """Those of these names, readable or not; None: all of them."""
    row = own_prices.c
    which = row.provider == provider if names is None else (row.provider == provider) & is_one_of(row.name, names)
    await connection.execute(delete(own_prices).where(which))


async def publish_price_list(connection: AsyncConnection, provider: str, listed: PriceList | None) -> None:
    """What its adapter says; writes what changed only. Without the provider's row there is nothing to write to."""
    row, content = provider_states.c, None if listed is None else codec.encode(listed)
    known = update(provider_states).where(row.provider == provider, row.price_list.is_distinct_from(content))
    await connection.execute(known.values(price_list=content))


async def dated_prices(connection: AsyncConnection, provider: str | None = None) -> dict[str, DatedPrices]:
    """Of each configured provider that has a list, or of this one alone. What cannot be read is left out."""
    row = provider_states.c
    wanted = select(row.provider, row.price_list).where(row.configured, row.price_list.is_not(None))
    if provider is not None:
        wanted = wanted.where(row.provider == provider)
    reading = RowReading()
    lists = {
        name: reading.of(provider_states.name, name, partial(_list, kept))
        for name, kept in await connection.execute(wanted)
    }
    if not lists:
        return {}
    own: dict[str, list[OwnPrice]] = defaultdict(list)
    rows = await connection.execute(select(own_prices).where(is_one_of(own_prices.c.provider, sorted(lists))))
    for one in rows:
        price = reading.of(own_prices.name, one.name, partial(_own_price, one))
        own[one.provider] += [] if price is None else [price]
    return {name: prices_in_use(listed, own[name]) for name, listed in sorted(lists.items()) if listed is not None}


def _own_price(row: Row[Any]) -> OwnPrice:
    """Raises ValueError for what nobody could have set."""
    per_hour = Money(row.micros_per_hour)
    if not 0 < per_hour.micros <= MOST_PER_HOUR.micros or row.set_ms < 0:
        raise ValueError(f"a price of {per_hour}/h, set at {row.set_ms}")
    return OwnPrice(row.name, per_hour, _day(row.as_of), row.set_ms, row.set_by)


def _list(kept: Any) -> PriceList:
    """Raises for what is no list with a date, or holds what is no price."""
    listed = codec.decode_row(PriceList, kept)
    for one in listed.prices:
        if not all(0 <= price.micros < 2**53 for price in (one.published, one.setting or one.published)):
            raise ValueError(f"{one.name} has no price that could be")
    return replace(listed, as_of=_day(listed.as_of))


def _day(text: str) -> str:
    """In the one writing in which days are in their order. Raises ValueError for what is no day."""
    return date.fromisoformat(text).isoformat()
