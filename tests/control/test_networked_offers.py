"""Whether machines of an offer reach each other is kept beside it by the control loop, for plans of other processes."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from app.control.prices import refresh_offers
from app.core import codec
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.db.offers.listed import IS_NETWORKED, read_offer, recent_offers
from app.db.offers.provider_states import refuse
from app.db.reading.plannable import Plannable, plannable_offers
from app.db.tables import offers
from tests.control.fake_provider import make_offer
from tests.control.world import World


async def plannable(world: World) -> Plannable:
    async with world.database.transaction() as connection:
        return await plannable_offers(connection, world.project_id, now_ms=world.clock.now_ms(), max_age_ms=600_000)


@pytest.fixture
async def listed(world: World) -> World:
    world.cloud.on_offer.append(make_offer(world.cloud.name, "vm-a100", Tier.CONVENTIONAL, "1.29", startup_ms=9))
    await refresh_offers(world.control.context)
    return world


async def test_every_listing_says_it_by_what_its_provider_says_of_its_tiers(listed: World) -> None:
    """A cloud's machines do, a marketplace's do not; nothing of it is in the offer that decisions and records have."""
    found = await plannable(listed)
    assert found.networked == {(listed.cloud.name, Tier.CONVENTIONAL)}
    assert {one.tier for one in found.offers} == {Tier.SERVERLESS, Tier.MARKETPLACE, Tier.CONVENTIONAL}
    rows = {row.offer_id: row.offer for row in await listed.rows(offers)}
    assert {name: kept[IS_NETWORKED] for name, kept in rows.items()} == {
        "serverless-a100": False,
        "market-a100": False,
        "vm-a100": True,
    }
    async with listed.database.transaction() as connection:
        seen = await recent_offers(connection, now_ms=listed.clock.now_ms(), max_age_ms=600_000)
    assert seen == found.offers and IS_NETWORKED not in codec.encode(seen[0])


async def test_rows_of_the_release_before_and_after_are_read(listed: World) -> None:
    """Without it nothing is known, until a listing says it; a listing is no news that only says it again."""
    kept = {row.offer_id: row.offer for row in await listed.rows(offers)}
    async with listed.database.transaction() as connection:
        await connection.execute(update(offers).values(offer=offers.c.offer.op("-")(IS_NETWORKED)))
    found = await plannable(listed)
    assert (found.networked, len(found.offers)) == (None, 3)
    await refresh_offers(listed.control.context)
    assert (await plannable(listed)).networked == {(listed.cloud.name, Tier.CONVENTIONAL)}
    assert {row.offer_id: row.offer for row in await listed.rows(offers)} == kept
    assert isinstance(read_offer(kept["vm-a100"] | {"more": 1}), Offer)


async def test_an_offer_that_cannot_be_read_hides_no_other(listed: World) -> None:
    async with listed.database.transaction() as connection:
        broken = update(offers).where(offers.c.offer_id == "market-a100")
        await connection.execute(broken.values(offer={"projects": 7, "memory_bytes": "many", "gpu_count": None}))
    assert [one.offer_id for one in (await plannable(listed)).offers] == ["serverless-a100", "vm-a100"]


async def test_a_provider_that_rents_nothing_offers_nothing(listed: World) -> None:
    async with listed.database.transaction() as connection:
        await refuse(connection, listed.cloud.name, "no", now_ms=listed.clock.now_ms())
    assert await plannable(listed) == Plannable((), frozenset())
