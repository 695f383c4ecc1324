"""Deadlines hold, whatever the call does."""

from __future__ import annotations

import asyncio

import pytest

from providers.modal.deadlines import Deadline, Late, OverdueCalls


async def test_an_answer_in_time_is_the_answer() -> None:
    """What the call returns, or raises, comes through."""

    async def answer() -> int:
        return 7

    async def refuse() -> int:
        raise LookupError("no")

    leftovers = OverdueCalls()
    assert await leftovers.within(Deadline(5.0), answer()) == 7
    with pytest.raises(LookupError, match="no"):
        await leftovers.within(Deadline(5.0), refuse())


async def test_a_call_that_ignores_its_cancellation_does_not_hold_us() -> None:
    """When the time is up we go on; the call is left alone, and its late failure troubles nobody."""
    released, cancelled = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
        await released.wait()
        raise RuntimeError("too late for anybody")

    leftovers = OverdueCalls()
    with pytest.raises(Late):
        await leftovers.within(Deadline(0.01), stubborn())
    await cancelled.wait()
    released.set()
    await leftovers.end()


async def test_whoever_is_cancelled_takes_the_call_along() -> None:
    """A caller that is cancelled cancels what it waits for."""
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    leftovers = OverdueCalls()
    caller = asyncio.create_task(leftovers.within(Deadline(60.0), call()))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    async with asyncio.timeout(30):
        await cancelled.wait()
    await leftovers.end()


def test_a_share_of_a_deadline_comes_sooner() -> None:
    """A part of the time is counted from the same beginning, and there is always a little left."""
    whole = Deadline(1_000.0)
    assert 299 < whole.share(0.3).left_s <= 300 < whole.left_s
    assert Deadline(0.0).left_s > 0
