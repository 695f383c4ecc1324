"""A calculation in a process of its own: its answer comes back, its errors too, and it is ended at its bounds."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import InvalidInput, InvariantBroken, TooLarge
from app.services.kit.apart import WorkBounds, work_apart

BOUNDS = WorkBounds("this", 30.0, 2**31, "ask for less")


def square(number: int) -> int:
    print("this is no part of the answer")
    return number * number


def refuse(number: int) -> int:
    raise InvalidInput(f"number: {number} is refused", param="number")


def broken(_: int) -> int:
    raise ZeroDivisionError("a bug")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def greedy(size: int) -> int:
    return len(bytearray(size))


def die(_: int) -> None:
    os.abort()


def environment(_: int) -> dict[str, str]:
    return dict(os.environ)


def told_pid(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)


def priority(_: int) -> int:
    return os.nice(0)


async def test_what_comes_back() -> None:
    assert await work_apart(square, 7, BOUNDS) == 49
    with pytest.raises(InvalidInput) as refused:
        await work_apart(refuse, 3, BOUNDS)
    assert refused.value.param == "number"
    with pytest.raises(InvariantBroken, match="ZeroDivisionError: a bug"):
        await work_apart(broken, 3, BOUNDS)


async def test_what_takes_too_much_is_ended_and_told_the_limit() -> None:
    with pytest.raises(TooLarge, match="this takes more than the 1 seconds that it may have here; ask for less"):
        await work_apart(sleep, 60.0, replace(BOUNDS, seconds=1.0))
    with pytest.raises(TooLarge, match="2048 MiB of memory"):
        await work_apart(greedy, 2**33, BOUNDS)
    with pytest.raises(TooLarge):
        await work_apart(die, 0, BOUNDS)


async def test_it_has_the_lowest_priority_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLPASS_SECRET_KEY", "s" * 32)
    assert await work_apart(priority, 0, BOUNDS) == min(19, os.nice(0) + 10)
    found = await work_apart(environment, 0, BOUNDS)
    assert [name for name in found if name.startswith(("ALLPASS", "AWS"))] == []


async def test_it_ends_with_whoever_asked(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    asking = asyncio.create_task(work_apart(told_pid, str(path), BOUNDS))
    async with asyncio.timeout(20):
        while not (path.exists() and path.read_text()):
            await asyncio.sleep(0.02)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)


async def test_the_event_loop_goes_on_meanwhile() -> None:
    asking = asyncio.create_task(work_apart(sleep, 0.5, BOUNDS))
    turns = 0
    while not asking.done():
        await asyncio.sleep(0.01)
        turns += 1
    await asking
    assert turns > 20
