"""Keep the table of offers like the providers' listings."""

from __future__ import annotations

from app.control.context import ControlContext
from app.control.each import each_by_itself
from app.core.arrivals import Arrivals
from app.core.machine_lives import MachineLives
from app.core.model.health import Chore
from app.db import notify
from app.db.nodes.arrivals import arrived_lately
from app.db.nodes.machine_lives import lived_lately
from app.db.offers.listed import replace_offers
from app.db.unreadable import RowReading


async def refresh_offers(context: ControlContext) -> None:
    """Ask every provider what it would rent. One that does not answer keeps its last offers until they are old."""

    async def refresh(name: str) -> None:
        await list_offers(context, name)

    await each_by_itself(context, Chore.PRICES, sorted(context.providers), refresh, named="the offers of {}".format)


async def list_offers(context: ControlContext, name: str) -> int:
    """Ask this provider, and keep what it says: so many offers. Raises ProviderError when it does not answer, and
    Fenced when this process does not lead any more."""
    seen = await context.ask(context.providers[name].offers())
    reading = RowReading()
    async with context.led() as connection:
        lives = MachineLives(await lived_lately(connection, name, now_ms=context.clock.now_ms()))
        arrivals = Arrivals(await arrived_lately(connection, name, now_ms=context.clock.now_ms()))
        seen = [arrivals.told_of(lives.told_of(offer)) for offer in seen]
        now_ms, networked = context.clock.now_ms(), context.networked_tiers(name)
        if await replace_offers(connection, name, seen, now_ms=now_ms, reading=reading, networked=networked):
            await notify.control(connection)
    for (_table, offer), error in reading.unread.items():
        context.health.failed(Chore.PRICES, f"offer {offer}", error)
    return len(seen)
