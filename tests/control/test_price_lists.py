"""Owners' prices in the control loop: they hold from the next listing on, in every process and after a failover."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from sqlalchemy import text

from app.control.prices import refresh_offers
from app.core.model.money import Money
from app.core.model.offer import Offer
from app.core.model.price_list import ListedPrice, OwnPrice, PriceList
from app.db.offers.price_lists import DatabaseOwnPrices, dated_prices, set_own_prices
from app.db.offers.provider_checks import CheckAnswer, ask_for_check, read_checks
from app.db.tables import offers, own_prices, provider_states
from app.errors import Transient
from app.ports.prices import OwnPrices, ProcessOwnPrices
from tests.control.fake_provider import FakeProvider
from tests.control.world import World


@dataclass
class ListedCloud(FakeProvider):
    """A company without an interface for prices: all offers cost what the list says, or an owner."""

    own: OwnPrices = field(default_factory=ProcessOwnPrices)

    def price_list(self) -> PriceList:
        if self.name == "broken":
            raise KeyError("no list")
        return PriceList("2026-05-07", (ListedPrice("A100", Money(2_000_000), "A100"),))

    async def offers(self) -> list[Offer]:
        price = (await self.own.known()).get("A100", Money(2_000_000))
        return [replace(offer, price_per_hour=price) for offer in await super().offers()]


def listed_cloud(world: World, name: str = "listed") -> ListedCloud:
    return ListedCloud(world.clock, name=name, own=DatabaseOwnPrices(world.database, name))


@pytest.fixture
async def listed(world: World) -> World:
    """A company that tells its prices, and one with a list. A control process starts."""
    world.other_clouds = [listed_cloud(world)]
    await world.restart()
    await world.control.checks.recheck_refused()
    return world


async def put(world: World, micros: int) -> None:
    async with world.database.transaction() as connection:
        price = OwnPrice("A100", Money(micros), "2026-11-20", 1, "key_1")
        await set_own_prices(connection, "listed", [price])


async def prices(world: World, provider: str = "listed") -> set[int]:
    return {row.price_micros_per_hour for row in await world.rows(offers) if row.provider == provider}


async def test_the_leader_publishes_the_lists_there_are(listed: World) -> None:
    """Of providers that have one; when an adapter has none any more, it goes."""
    async with listed.database.transaction() as connection:
        assert {name: str(found.as_of) for name, found in (await dated_prices(connection)).items()} == {
            "listed": "2026-05-07"
        }
    listed.other_clouds = [FakeProvider(listed.clock, name="listed")]
    await listed.restart()
    await listed.control.checks.recheck_refused()
    async with listed.database.transaction() as connection:
        assert await dated_prices(connection) == {}


async def test_a_list_that_fails_hides_no_other(world: World) -> None:
    """An adapter that raises is left behind; the others are published, and all are known as configured."""
    world.other_clouds = [ListedCloud(world.clock, name="broken"), listed_cloud(world)]
    await world.restart()
    await world.control.checks.recheck_refused()
    kept = {row.provider: row.price_list for row in await world.rows(provider_states)}
    assert kept["listed"] is not None
    assert (kept["cloud"], kept["broken"]) == (None, None)


async def test_a_price_holds_from_the_next_listing_on_and_after_a_failover(listed: World) -> None:
    """Without a restart where it was set, and in the process that takes over; taken back, the list counts again."""
    await refresh_offers(listed.control.context)
    assert await prices(listed) == {2_000_000}
    await put(listed, 1_500_000)
    await refresh_offers(listed.control.context)
    assert await prices(listed) == {1_500_000}
    listed.other_clouds = [listed_cloud(listed)]
    await listed.restart()
    await refresh_offers(listed.control.context)
    assert await prices(listed) == {1_500_000}
    async with listed.database.transaction() as connection:
        await connection.execute(own_prices.delete())
    await refresh_offers(listed.control.context)
    assert await prices(listed) == {2_000_000}


async def test_a_price_that_cannot_be_read_stops_no_listing(listed: World) -> None:
    """The last known one stands, and other providers are listed as ever."""
    await put(listed, 1_500_000)
    await refresh_offers(listed.control.context)
    async with listed.database.transaction() as connection:
        await connection.execute(text("UPDATE own_prices SET micros_per_hour = -1"))
        await connection.execute(offers.delete())
    await refresh_offers(listed.control.context)
    assert await prices(listed) == {1_500_000}
    assert await prices(listed, "cloud")


async def asked(world: World, *providers: str) -> dict[str, str]:
    """Requests for prices, by their provider."""
    now_ms = world.clock.now_ms()
    ids = {name: world.ids.new("chk") for name in providers}
    async with world.database.transaction() as connection:
        for name, check_id in ids.items():
            await ask_for_check(connection, check_id, name, now_ms=now_ms, deadline_ms=now_ms + 20_000, prices=True)
    return ids


async def answers(world: World, ids: dict[str, str]) -> dict[str, CheckAnswer | None]:
    async with world.database.transaction() as connection:
        rows = await read_checks(connection, list(ids.values()))
    return {row.provider: row.answer for row in rows}


async def test_prices_are_asked_for_at_once(listed: World) -> None:
    """The listing is kept as the chore would have; a company that fails says so, and the others are listed."""
    await refresh_offers(listed.control.context)
    await put(listed, 1_500_000)
    listed.cloud.listing_error = Transient("502")
    ids = await asked(listed, "cloud", "listed")
    assert await listed.control.checks.answer_open() == 2
    told = await answers(listed, ids)
    assert told["cloud"] == CheckAnswer("provider_transient", "502")
    assert told["listed"] is not None
    assert (told["listed"].error_code, told["listed"].offers) == (None, 2)
    assert await prices(listed) == {1_500_000}
    assert listed.cloud.creates == 0


async def test_only_the_leader_keeps_what_is_listed(listed: World) -> None:
    """A process that holds credentials and does not lead leaves these requests, and answers plain checks."""
    ids = await asked(listed, "listed")
    follower = listed.new_control()
    assert await follower.checks.answer_open() == 0
    plain, now_ms = listed.ids.new("chk"), listed.clock.now_ms()
    async with listed.database.transaction() as connection:
        await ask_for_check(connection, plain, "listed", now_ms=now_ms, deadline_ms=now_ms + 20_000)
    assert await follower.checks.answer_open() == 1
    assert await listed.control.checks.answer_open() == 1
    assert (await answers(listed, ids))["listed"] is not None


async def test_a_request_of_the_release_before_is_a_check(listed: World) -> None:
    """It writes rows without the new column; they are answered as they were."""
    check_id, now_ms = listed.ids.new("chk"), listed.clock.now_ms()
    statement = (
        "INSERT INTO provider_checks (id, provider, requested_ms, deadline_ms) VALUES (:id, 'listed', :now, :end)"
    )
    async with listed.database.transaction() as connection:
        await connection.execute(text(statement), {"id": check_id, "now": now_ms, "end": now_ms + 20_000})
    assert await listed.control.checks.answer_open() == 1
    answer = (await answers(listed, {"listed": check_id}))["listed"]
    assert answer is not None
    assert (answer.message, answer.machines) == ("the credentials are taken", 0)
