"""What one serverless stay would have cost in place of all of a job's stays: what moving saved is the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.billing import serverless_equivalent
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, Tier
from app.db.connection import Connection
from app.db.reading.placements import Lost, StayRow, cheapest_serverless_price

_BY_THE_SECOND = BillingRule(unit_ms=1000, starts=BillingStart.READY)  # how serverless bills, when no stay tells


def running_ms(stay: StayRow, now_ms: int) -> int:
    """How long the job's code has run in this stay. Of a job on several machines it runs where the first one is."""
    if stay.running_ms is None or stay.follows:
        return 0
    return max(0, (now_ms if stay.to_ms is None else stay.to_ms) - stay.running_ms)


def repeated_ms(stay: StayRow, lost: Lost | None, now_ms: int) -> int:
    """Of that, what was lost: all of it where no steps were reported, else the part of the steps that was lost."""
    if lost is None:
        return 0
    taken = lost.step - (stay.resumed_from_step or 0)
    ran_ms = running_ms(stay, now_ms)
    return ran_ms if taken <= 0 else ran_ms * min(lost.steps, taken) // taken


class ServerlessPrices:
    """What GPUs cost on serverless now, asked for once for each kind."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[str, int], Money | None] = {}

    async def of(self, gpu_type: str, gpu_count: int) -> Money | None:
        """Per hour; None when nobody offers them."""
        kind = gpu_type, gpu_count
        if kind not in self._known:
            self._known[kind] = await cheapest_serverless_price(self._connection, gpu_type, gpu_count)
        return self._known[kind]


async def all_serverless(stays: Sequence[StayRow], useful_ms: int, cost: Money, prices: ServerlessPrices) -> Money:
    """By the price and boot of its own serverless stay, else by what is offered now; its cost when nobody offers that.

    A job that never left serverless would have cost what it did, and so would one on several machines, which
    serverless does not have.
    """
    if not stays or useful_ms == 0:
        return Money(0)
    if any(stay.follows for stay in stays):
        return cost
    serverless = [stay for stay in stays if stay.tier is Tier.SERVERLESS]
    if len(serverless) == len(stays) == 1:
        return cost
    if serverless:
        first = serverless[0]
        boot_ms = 0 if first.running_ms is None else first.running_ms - first.from_ms
        return serverless_equivalent(first.billing, first.price_per_hour, boot_ms + useful_ms)
    last = stays[-1]
    price = await prices.of(last.gpu_type, last.gpu_count)
    return cost if price is None else serverless_equivalent(_BY_THE_SECOND, price, useful_ms)


async def saved_by_moving(
    stays: Sequence[StayRow], lost: Mapping[str, Lost], cost: Money, prices: ServerlessPrices, *, now_ms: int
) -> Money | None:
    """What the job would have cost all serverless, less what it has; None before it has done anything."""
    useful_ms = sum(running_ms(one, now_ms) - repeated_ms(one, lost.get(one.run_id), now_ms) for one in stays)
    if useful_ms <= 0:
        return None
    return await all_serverless(stays, useful_ms, cost, prices) - cost
