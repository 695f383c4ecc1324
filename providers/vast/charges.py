"""What Vast.ai has charged for a contract that is over."""

from __future__ import annotations

import logging

from app.core.model.money import ZERO, Money, total
from app.errors import ProviderError
from providers.vast.contracts import Sighting
from providers.vast.numbers import dollars, number, text
from providers.vast.wire import VastWire

_DAY_S = 86_400
_log = logging.getLogger(__name__)


async def charged(wire: VastWire, sighting: Sighting, *, now_ms: int) -> Money | None:
    """The company's own total: GPU, disk from create to destroy, bytes. None as long as it is not known.

    Charges are posted some time after they arise, and nothing says when they are complete. So a total below what the
    time that we saw the container run must have cost is not believed. A key that may not read bills is no failure:
    the bill is then reckoned from the price.
    """
    machine = sighting.machine
    from_s = machine.created_ms // 1000 - _DAY_S  # they are kept by day
    try:
        rows = await wire.charges(from_s, now_ms // 1000 + _DAY_S)
    except ProviderError as error:
        _log.warning("vast: what contract %s has cost is not known: %s", machine.ref, error)
        return None
    source = f"instance-{machine.ref}"
    own = [row for row in rows if isinstance(row, dict) and text(row, "source") == source]
    amounts = [dollars(amount) for amount in (number(row, "amount") for row in own) if amount is not None]
    figure = total(amounts)
    # What was given back stands among them as a negative amount, and does not make the rest incomplete.
    asked = total(amount for amount in amounts if amount.micros > 0)
    return max(figure, ZERO) if amounts and asked >= sighting.certain_cost() else None
