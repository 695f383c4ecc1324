"""Many ranges that may go to other machines: each is looked at in its turn, beside the loop, and fails by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.control import growing, other_machines
from app.control.looks import LookingLine
from app.core.elastic.runs import ElasticRun
from tests.control.measured_pool import MeasuredPool
from tests.control.test_growing import Late
from tests.control.test_other_machines import CURVE, Range, asks
from tests.control.world import World


async def _late(world: World, *, first: bool) -> MeasuredPool:
    pool = Late(world)
    await pool.open({1: 1.0, 2: 1.9} if first else {})
    return pool


async def _early(world: World, *, first: bool) -> MeasuredPool:
    pool = Range(world)
    await pool.open(4, asks(1, 4, 4), speeds=CURVE if first else {})
    return pool


LOOKS = [(growing, "growth_of", _late, "grows_for_deadline"), (other_machines, "change_of", _early, "moves_smaller")]


async def _decide(pools: Sequence[MeasuredPool], looks: int) -> None:
    for _ in range(looks):
        for pool in pools:
            await pool.world.beat(pool.node_id)
        await pools[0].decide(30_000)


@pytest.mark.parametrize(("module", "function", "opened", "_kind"), LOOKS, ids=["larger", "other"])
async def test_nobody_is_left_out_for_long_where_there_is_no_time_for_all(
    world: World, monkeypatch: pytest.MonkeyPatch, module: Any, function: str,
    opened: Callable[..., Awaitable[MeasuredPool]], _kind: str,
) -> None:  # fmt: skip
    """And the loop, which renews the lead, goes on meanwhile."""
    pools, seen, threads = [await opened(world, first=one) for one in (True, False)], [], set()

    def looks(*given: Any) -> None:
        seen.append(next(one.run_id for one in given if isinstance(one, ElasticRun)))
        threads.add(threading.get_ident())

    monkeypatch.setattr(module, function, looks)
    await _decide(pools, 2)
    seen.clear()
    monkeypatch.setattr(module, "_MOST_S", 0.0)
    await _decide(pools, 4)
    assert len(seen) == 4, "one in each look"
    assert {*seen[:2]} == {*seen[2:]} == {pool.run_id for pool in pools}
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(("module", "function", "opened", "kind"), LOOKS, ids=["larger", "other"])
async def test_what_fails_of_one_range_is_told_of_it_and_the_other_one_goes(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: Any, function: str,
    opened: Callable[..., Awaitable[MeasuredPool]], kind: str,
) -> None:  # fmt: skip
    bad, good = [await opened(world, first=one) for one in (True, False)]
    sound = getattr(module, function)

    def looks(*given: Any) -> object:
        if any(isinstance(one, ElasticRun) and one.run_id == bad.run_id for one in given):
            raise RuntimeError("not a speed")
        return sound(*given)

    monkeypatch.setattr(module, function, looks)
    with caplog.at_level(logging.ERROR):
        await _decide([bad, good], 3)
    assert any(bad.run_id in one.getMessage() for one in caplog.records)
    assert (len(await bad.events(kind)), len(await good.events(kind))) == (0, 1)


@given(st.integers(1, 8), st.lists(st.sets(st.integers(0, 9).map(str), min_size=1), max_size=8), st.integers(1, 8))
def test_whoever_stays_comes_in_his_turn(at_once: int, before: list[set[str]], stay: int) -> None:
    """Whoever else came before: of so many that stay all are looked at in as many looks as that takes, none twice."""
    turns, names = LookingLine(), [str(number) for number in range(stay)]

    def look(whom: Any) -> list[str]:
        ticks = count()
        return list(turns.of(whom, at_once, lambda: next(ticks)))

    for whom in before:
        look(whom)
    seen = [name for _ in range(-(-stay // at_once)) for name in look(names)]
    assert {*seen} == {*names}
    assert {*seen[:stay]} == {*names}
