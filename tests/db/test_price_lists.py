"""Price lists and owners' prices in the database: shared by all processes, and never in the way of offers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sqlalchemy import text

from app.core.model.money import Money
from app.core.model.price_list import ListedPrice, OwnPrice, PriceList
from app.db.engine import Database, make_engine
from app.db.offers.price_lists import (
    DatabaseOwnPrices,
    dated_prices,
    delete_own_prices,
    own_prices_of,
    publish_price_list,
    set_own_prices,
)
from app.db.offers.provider_states import set_configured
from app.db.unreadable import RowReading
from app.errors import Transient
from app.ports.prices import OwnPrices, ProcessOwnPrices

LIST = PriceList("2026-05-07", (ListedPrice("H100", Money(100), "H100"), ListedPrice("cpu", Money(1))))


async def put(database: Database, provider: str = "modal", **micros: int) -> None:
    prices = [OwnPrice(name, Money(price), "2026-11-20", 1, "key_1") for name, price in micros.items()]
    async with database.transaction() as connection:
        await set_own_prices(connection, provider, prices)


async def run(database: Database, statement: str) -> None:
    async with database.transaction() as connection:
        await connection.execute(text(statement))


def usd(**micros: int) -> Mapping[str, Money]:
    return {name: Money(price) for name, price in micros.items()}


async def test_every_process_reads_what_one_has_set_also_after_it_is_gone(database_url: str) -> None:
    """At its next listing; of its own provider; the last word on each name counts."""
    first, second = (Database(make_engine(database_url, pool_size=2, timeout_s=10.0)) for _ in range(2))
    others = DatabaseOwnPrices(second, "modal")
    assert await others.known() == {}
    await put(first, H100=90, cpu=2)
    await put(first, "elsewhere", H100=1)
    assert await others.known() == usd(H100=90, cpu=2)
    await put(first, H100=95)
    await first.close()
    assert await others.known() == usd(H100=95, cpu=2)
    assert await DatabaseOwnPrices(second, "modal").known() == usd(H100=95, cpu=2)
    await second.close()


async def test_a_process_alone_keeps_the_same_promise() -> None:
    """What tools without a database use."""
    own: OwnPrices = ProcessOwnPrices(usd(H100=90))
    assert await own.known() == usd(H100=90)
    assert await ProcessOwnPrices().known() == {}


async def test_what_is_taken_back_counts_no_more(database: Database) -> None:
    """By name, or all of one provider; other providers keep theirs."""
    await put(database, H100=90, cpu=2, L4=3)
    await put(database, "elsewhere", H100=1)
    own = DatabaseOwnPrices(database, "modal")
    async with database.transaction() as connection:
        await delete_own_prices(connection, "modal", ["H100", "unknown"])
    assert await own.known() == usd(cpu=2, L4=3)
    async with database.transaction() as connection:
        await delete_own_prices(connection, "modal", None)
    assert await own.known() == {}
    assert await DatabaseOwnPrices(database, "elsewhere").known() == usd(H100=1)


@pytest.mark.parametrize(
    "poison", ["micros_per_hour = 0", f"micros_per_hour = {2**62}", "as_of = 'next spring'", f"set_ms = {-(2**62)}"]
)
async def test_a_price_that_cannot_be_read_stays_as_it_was_known(database: Database, poison: str) -> None:
    """The other prices are read as ever; a process that never knew it goes by the list."""
    await put(database, H100=90, cpu=2)
    own = DatabaseOwnPrices(database, "modal")
    assert await own.known() == usd(H100=90, cpu=2)
    await put(database, cpu=3)
    await run(database, f"UPDATE own_prices SET {poison} WHERE name = 'H100'")
    assert await own.known() == usd(H100=90, cpu=3)
    assert await own.known() == usd(H100=90, cpu=3)
    assert await DatabaseOwnPrices(database, "modal").known() == usd(cpu=3)
    async with database.transaction() as connection:
        reading = RowReading()
        assert [one.name for one in await own_prices_of(connection, "modal", reading)] == ["cpu"]
        assert set(reading.unread) == {("own_prices", "H100")}
    await put(database, H100=80)  # an owner mends it
    assert await own.known() == usd(H100=80, cpu=3)


async def test_a_price_that_is_told_as_unreadable_is_told_once(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Listings come every minute; the log does not have to."""
    await put(database, H100=90)
    await run(database, "UPDATE own_prices SET as_of = ''")
    own = DatabaseOwnPrices(database, "modal")
    await own.known()
    await own.known()
    assert [record.message for record in caplog.records if "H100" in record.message] == [
        "the price of H100 at modal that an owner set cannot be read: Invalid isoformat string: ''"
    ]


async def test_without_the_database_the_last_known_prices_stand(database_url: str) -> None:
    """A process that has never read any says that it cannot know, and rents nothing by a price that may be wrong."""
    database = Database(make_engine(database_url, pool_size=2, timeout_s=5.0))
    await put(database, H100=90)
    own = DatabaseOwnPrices(database, "modal")
    assert await own.known() == usd(H100=90)
    nowhere = Database(make_engine("postgresql://nobody@127.0.0.1:1/none", pool_size=1, timeout_s=1))
    own._database = nowhere
    assert await own.known() == usd(H100=90)
    with pytest.raises(Transient, match="prices of modal that an owner set are not known"):
        await DatabaseOwnPrices(nowhere, "modal").known()
    await database.close()
    await nowhere.close()


async def test_a_table_of_another_release_stops_no_listing(database: Database) -> None:
    """Whatever has become of it, offers come: at the prices last known, or at those of the list."""
    await put(database, H100=90)
    own = DatabaseOwnPrices(database, "modal")
    await own.known()
    await run(database, "ALTER TABLE own_prices RENAME COLUMN micros_per_hour TO nanos_per_hour")
    assert await own.known() == usd(H100=90)
    assert await DatabaseOwnPrices(database, "modal").known() == {}


async def test_a_list_is_shown_with_what_owners_set_as_long_as_its_provider_is_configured(database: Database) -> None:
    """Published by whoever has the adapter; a provider that tells its prices has none; writing it again changes
    nothing."""
    async with database.transaction() as connection:
        await publish_price_list(connection, "modal", LIST)
        assert await dated_prices(connection) == {}  # nobody has said that it is configured
        await set_configured(connection, ["modal", "vast"])
        await publish_price_list(connection, "modal", LIST)
        await publish_price_list(connection, "vast", None)
    await put(database, H100=90)
    async with database.transaction() as connection:
        written = text("SELECT provider, xmin::text FROM provider_states ORDER BY provider")
        before = (await connection.execute(written)).all()
        await publish_price_list(connection, "modal", LIST)
        await publish_price_list(connection, "vast", None)
        assert (await connection.execute(written)).all() == before
        shown = await dated_prices(connection)
        assert list(shown) == ["modal"]
        assert {one.name: one.used for one in shown["modal"].prices} == usd(H100=90, cpu=1)
        assert await dated_prices(connection, "vast") == {}
        await publish_price_list(connection, "modal", None)
        assert await dated_prices(connection) == {}
        await publish_price_list(connection, "modal", LIST)
        await set_configured(connection, ["vast"])
        assert await dated_prices(connection) == {}


@pytest.mark.parametrize(
    "kept",
    ['"once"', "[]", '{"as_of": "2026"}', '{"as_of": "2026-05-07", "prices": [{"name": "H100", "published": -1}]}'],
)
async def test_a_list_that_cannot_be_read_hides_no_other(database: Database, kept: str) -> None:
    """Whoever asks for prices sees those of the others."""
    async with database.transaction() as connection:
        await set_configured(connection, ["modal", "other"])
        await publish_price_list(connection, "other", LIST)
        cast = text("UPDATE provider_states SET price_list = CAST(:kept AS jsonb) WHERE provider = 'modal'")
        await connection.execute(cast, {"kept": kept})
        assert list(await dated_prices(connection)) == ["other"]
