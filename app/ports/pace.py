"""How fast one account at a provider may be called."""

from __future__ import annotations

from typing import Protocol

from app.errors import RateLimited
from app.ports.clock import Clock


class Pace(Protocol):
    """The turns of one provider's account, given out one by one. A lane is a kind of call with a limit of its own."""

    async def turn(self, lane: str, every_ms: int) -> None:
        """Return when the caller may make the lane's next call: at least `every_ms` after the turn before it.

        Turns are given in the order in which they are asked for. Raises RateLimited, with the time until the next
        free turn, when that is further away than the caller can be kept waiting; then no turn is used up.
        """
        ...


class ProcessPace:
    """A pace that this process alone keeps: for tools without a database, and for tests."""

    def __init__(self, clock: Clock, *, patience_ms: int) -> None:
        self._clock = clock
        self._patience_ms = patience_ms
        self._next_ms: dict[str, int] = {}

    async def turn(self, lane: str, every_ms: int) -> None:
        """See `Pace.turn`."""
        now_ms = self._clock.now_ms()
        turn_ms = max(now_ms, self._next_ms.get(lane, now_ms))
        check_patience(lane, turn_ms - now_ms, self._patience_ms)
        self._next_ms[lane] = turn_ms + every_ms
        if turn_ms > now_ms:
            await self._clock.sleep_ms(turn_ms - now_ms)


def check_patience(lane: str, wait_ms: int, patience_ms: int) -> None:
    """Raise RateLimited, with the time left, when a turn is further away than the caller can be kept waiting."""
    if wait_ms > patience_ms:
        message = f"the next {lane} call may be made in {wait_ms} ms: our own limit, kept for all of our processes"
        raise RateLimited(message, retry_after_ms=wait_ms)
