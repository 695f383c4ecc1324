"""Checks beside each other: each is bounded, and none hides another."""

from __future__ import annotations

import asyncio

from app.core.model.finding import Finding, good
from app.doctor.examination import Check, examine
from app.errors import Unavailable


async def fine() -> list[Finding]:
    return [good("fine", "it works")]


async def hangs() -> list[Finding]:
    await asyncio.Event().wait()
    return []


async def raises() -> list[Finding]:
    raise ZeroDivisionError("while the key sesame was in hand")


async def refuses() -> list[Finding]:
    raise Unavailable("the thing is away")


async def test_one_that_fails_hides_no_other() -> None:
    """In the order in which they were asked; what raises, hangs or refuses is a line with a code."""
    checks = [
        Check("raises", raises, 5),
        Check("hangs", hangs, 0.05),
        Check("refuses", refuses, 5),
        Check("f", fine, 5),
    ]
    found = await examine(checks, ["sesame"])
    assert [(one.name, one.code) for one in found] == [
        ("raises", "check_failed"),
        ("hangs", "check_timed_out"),
        ("refuses", "unavailable"),
        ("fine", "ok"),
    ]
    assert "sesame" not in found[0].message and "ZeroDivisionError" in found[0].message
    assert all(one.fix for one in found[:3])


async def test_a_check_may_find_several_things() -> None:
    """And nothing at all."""

    async def two() -> list[Finding]:
        return [good("a", "1"), good("b", "2")]

    async def none() -> list[Finding]:
        return []

    found = await examine([Check("two", two, 5), Check("none", none, 5)], [])
    assert [one.name for one in found] == ["a", "b"]
