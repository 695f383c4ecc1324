"""What the exam needs of a provider under test, besides the provider."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from app.core.model.money import ZERO, Money
from app.core.model.node import Tier
from app.ports.provider import MachineStatus, Provider


class Trouble(StrEnum):
    """What the other side of the wire can be made to do to the next call. Each is used up by one call."""

    CREATE_REPLY_LOST = "create_reply_lost"  # the machine is there; the connection breaks before the answer
    CREATE_ERROR_AFTER_EFFECT = "create_error_after_effect"  # the machine is there; the answer is a server error
    CREATE_TOO_SLOW = "create_too_slow"  # the machine is there; the answer comes after the adapter's patience
    CREATE_DROPPED_BEFORE_EFFECT = "create_dropped_before_effect"
    CREATE_ERROR_BEFORE_EFFECT = "create_error_before_effect"
    CREATE_NO_CAPACITY = "create_no_capacity"
    CREATE_OFFER_GONE = "create_offer_gone"
    CREATE_PRICE_MOVED = "create_price_moved"
    CREATE_RATE_LIMITED = "create_rate_limited"
    CREATE_NEVER_READY = "create_never_ready"  # the call succeeds; the machine boots for ever
    GET_DROPPED = "get_dropped"
    LIST_ERROR = "list_error"
    LIST_RATE_LIMITED = "list_rate_limited"
    TERMINATE_REPLY_LOST = "terminate_reply_lost"  # the machine is gone; the answer is lost
    TERMINATE_ERROR_BEFORE_EFFECT = "terminate_error_before_effect"


TROUBLE_RETRY_AFTER_MS = 1_500  # what rate-limited answers must say


@dataclass(frozen=True, slots=True)
class BillLine:
    """What the company itself will charge for a machine, from its bill and not through the provider's adapter.

    `beside` is the part of `amount` that is not time at the machine's price: its disk before it ran, bytes moved.
    """

    amount: Money
    from_ms: int | None
    to_ms: int | None
    beside: Money = ZERO


@dataclass(frozen=True, slots=True)
class Ways:
    """How companies differ that all do right. The defaults are those of one whose API tells everything.

    `times_slack_ms`: how far the times that its API lets an adapter know may lie from those of its bill.
    `dead_is`: what it makes of a machine whose processes have died: over, or stopped with a disk that still costs.
    `impossible`: troubles that its interface has no way to make; `arrange` is never asked for them.
    `shows_logs`: whether it tells what a machine writes; else `logs` is empty without asking.
    """

    times_slack_ms: int = 0
    dead_is: MachineStatus = MachineStatus.ENDED
    impossible: frozenset[Trouble] = frozenset()
    shows_logs: bool = True


class Harness(Protocol):
    """A provider with the other side of its wire under control. The account is otherwise unused.

    Machines start without noticeable delay and run until they are ended. `patience_s` bounds every wait of the exam.
    """

    provider: Provider
    tiers: frozenset[Tier]
    patience_s: float
    ways: Ways

    async def arrange(self, trouble: Trouble) -> None:
        """Have this trouble strike the next call that it fits."""
        ...

    def with_wrong_key(self) -> Provider:
        """The same provider with credentials that are refused. The exam closes it."""
        ...

    def unreachable(self) -> Provider:
        """The same provider where nobody listens. The exam closes it."""
        ...

    async def rent_for_somebody_else(self) -> str:
        """A live machine in this account that is not one of ours; its ref."""
        ...

    async def kill_inside(self, ref: str) -> None:
        """Make what runs on the machine die, as a crash would, without asking the provider."""
        ...

    async def bill(self, ref: str) -> BillLine:
        """The company's bill for the machine."""
        ...
