"""Nobody new comes to a node while it is being vacated; it opens again however that ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.core.defragmentation import Goal
from app.core.defragmentation.execution import SETTLES_MS
from app.core.model.health import Chore
from app.core.model.job import Resources
from app.db import tables as t
from tests.control.defragging import Fragmented
from tests.control.moving import Moving
from tests.control.world import World
from tests.seeds import resources_json

BOTH = pytest.mark.parametrize("goal", list(Goal))


@pytest.fixture
async def goal() -> Goal:
    return Goal.RENT


@pytest.fixture
async def fleet(world: World, tmp_path: Path, goal: Goal) -> Fragmented:
    made = Fragmented(world, tmp_path, goal)
    await made.begin()
    return made


async def begun(fleet: Fragmented) -> tuple[Moving, str]:
    """The first move is under way, off the node of this name."""
    await fleet.half_used()
    await fleet.asks()
    for _ in range(3):
        await fleet.round()
    (move,) = await fleet.moving()
    (row,) = await fleet.world.rows(t.node_releases)
    return move, _name(fleet, row.node_id)


def _name(fleet: Fragmented, node_id: str) -> str:
    if fleet.goal is Goal.POOLS:
        return node_id.removeprefix("host_").partition("/")[0]
    return next(name for name, one in fleet.nodes.items() if one == node_id)


async def come(fleet: Fragmented, number: int = 8) -> list[str]:
    """More jobs than there is room for, of one GPU each."""
    names = [f"new_{count}" for count in range(number)]
    for name in names:
        fleet.jobs[name] = await fleet.world.submit(resources=resources_json(Resources()), saves_ms=1)
    return names


async def decided(fleet: Fragmented) -> None:
    for _ in range(3):
        await fleet.heard()
        await fleet.world.decide()
        await fleet.works()


async def places(fleet: Fragmented, names: list[str]) -> list[str]:
    found = []
    for name in names:
        if (await fleet.world.job(fleet.jobs[name])).state in ("starting", "running"):
            found.append(await fleet.place_of(name))
    return found


@BOTH
async def test_newcomers_go_elsewhere_or_wait_until_it_is_vacated(fleet: Fragmented) -> None:
    """Whoever leads: what is closed is read from rows."""
    move, name = await begun(fleet)
    names = await come(fleet)
    await decided(fleet)
    there = await places(fleet, names)
    assert there and name not in there
    await fleet.world.restart()
    await decided(fleet)
    assert name not in await places(fleet, names)
    await fleet.completes(move)
    shown = await fleet.until_over()
    assert [str(one.release.state) for one in shown.releases] == ["freed"]
    await decided(fleet)
    if fleet.goal is Goal.POOLS:
        assert name in await places(fleet, names), "it is open again"
    await fleet.world.check_invariants()


@BOTH
async def test_without_a_plan_they_come_at_once(fleet: Fragmented) -> None:
    await fleet.half_used()
    names = await come(fleet)
    await decided(fleet)
    assert set(await places(fleet, names)) == {"a", "b", "c"}


@BOTH
@pytest.mark.parametrize("how", ["called off", "forgotten", "stop and go", "failed", "dropped"])
async def test_it_opens_again_however_that_ends(fleet: Fragmented, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """`forgotten`: nothing of it goes on for as long as a move may take."""
    _, name = await begun(fleet)
    world = fleet.world
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(world.control.context.health, "failed", lambda part, item, _: told.append((part, item)))
    if how == "called off":
        await fleet.calls_off()
    elif how == "forgotten":
        await decided(fleet)
        world.clock.advance(s=2 * world.settings.move_timeout_s, ms=SETTLES_MS + 1)
    elif how == "stop and go":
        monkeypatch.setattr(world.settings, "moves", "stop_and_go")
    elif how == "failed":

        async def fails(*_: Any, **__: Any) -> set[str]:
            raise RuntimeError("a row that nobody understands")

        monkeypatch.setattr("app.control.vacating.vacated_nodes", fails)
    else:
        async with world.database.transaction() as connection:
            await connection.execute(t.node_releases.update().values(state="dropped", ended_ms=world.clock.now_ms()))
    names = await come(fleet)
    await decided(fleet)
    assert name in await places(fleet, names)
    assert {part for part, _ in told} == ({Chore.DEFRAG} if how == "failed" else set())


async def chained(fleet: Fragmented) -> None:
    """To vacate a, a small job of b has to move on to c first."""
    pinned = {"affinity": {"locked": True}}
    for name in "abc":
        await fleet.machine(name, 8)
    await fleet.trains("three", "a", 3)
    await fleet.trains("five", "b", 5, **pinned)
    await fleet.trains("one", "b", 1, first=5)
    await fleet.trains("seven", "c", 7, **pinned)


async def next_move(fleet: Fragmented) -> Moving:
    """Parts of hosts that nobody is on any more are given back by decisions."""
    for _ in range(6):
        await fleet.round()
        if found := await fleet.moving():
            return found[0]
        await decided(fleet)
    raise AssertionError("no move begins")


@BOTH
async def test_half_a_chain_leaves_nobody_worse(fleet: Fragmented) -> None:
    """The first job has moved once, for nothing as it turns out. It trains on at its step, on as many GPUs at no higher
    price, on a machine that was in use before; as many machines are free as before; and it is left in peace: the next
    plan does not move it again, nor does this one go on."""
    await chained(fleet)
    await fleet.asks()
    first = await next_move(fleet)
    assert first.job_id == fleet.jobs["one"]
    await fleet.completes(first)
    second = await next_move(fleet)
    assert second.job_id == fleet.jobs["three"]
    nodes = [row.id for row in await fleet.world.rows(t.nodes) if row.state == "ready"]
    fleet.world.clock.advance(s=fleet.world.settings.move_timeout_s + 1)
    for node_id in nodes:
        await fleet.world.beat(node_id)
    await fleet.world.check_heartbeats()
    await fleet.until_over()
    assert await fleet.states() == ["dropped"]
    assert "the move of" in await fleet.why()
    assert [await fleet.place_of(name) for name in ("three", "five", "one", "seven")] == ["a", "b", "c", "c"]
    one = await fleet.world.job(fleet.jobs["one"])
    assert (one.state, one.step, one.faults) == ("running", 60, 0)
    assert await fleet.used() == {"a", "b", "c"}
    await fleet.asks()
    again = await fleet.until_over()
    assert again.row.end_message == "there was nothing to vacate", "it rests"
    assert len([row for row in await fleet.world.rows(t.moves) if row.job_id == fleet.jobs["one"]]) == 1
    await fleet.world.check_invariants()
