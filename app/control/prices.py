"""Keep the table of offers like the providers' listings."""

from __future__ import annotations

import logging

from app.control.parts import ControlParts
from app.db import notify
from app.db.offers import replace_offers
from app.errors import ProviderError

log = logging.getLogger(__name__)


async def refresh_offers(parts: ControlParts) -> None:
    """Ask every provider what it would rent. One that does not answer keeps its last offers until they are old."""
    for name in sorted(parts.providers):
        try:
            seen = await parts.ask(parts.providers[name].offers())
        except ProviderError as error:
            log.warning("the offers of %s are not known now: %s", name, error)
            continue
        async with parts.database.transaction() as connection:
            await parts.leader.guard(connection)
            if await replace_offers(connection, name, seen, now_ms=parts.clock.now_ms()):
                await notify.control(connection)
