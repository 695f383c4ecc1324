"""Nodes are vacated by moves, through the chore itself: whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from app.core.defragmentation import Goal, Stays
from app.core.defragmentation.execution import STALE_MS
from app.core.model.health import Chore
from app.core.model.job import Resources
from app.db import tables as t
from app.db.engine import make_engine
from app.db.jobs.reads import find_job
from app.db.standby.standbys import StandbyRow, add_standby
from app.errors import Conflict
from app.services.defragmentation.ask_defragmentation import plan_defragmentation
from app.services.nodes.lose_node import lose_node
from app.services.reading.explain_job import explain_job
from tests.control.defragging import Fragmented
from tests.control.dying import DyingDatabase, KilledError
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


@BOTH
async def test_three_half_used_become_two_and_twice_in_a_row_there_is_nothing_more(fleet: Fragmented) -> None:
    await fleet.half_used()
    await fleet.asks()
    shown = await fleet.until_over()
    assert (shown.row.state, shown.row.end_message) == ("done", "1 of 1 node vacated"), shown
    assert len(await fleet.used()) == 2
    for _ in range(2):
        await fleet.asks()
        again = await fleet.until_over()
        assert (again.row.state, again.row.end_message) == ("done", "there was nothing to vacate")
    assert [row.state for row in await fleet.world.rows(t.moves)] == ["done"]
    await fleet.world.check_invariants()


@BOTH
async def test_who_has_moved_is_told_what_it_was_good_for_and_what_it_has_cost(fleet: Fragmented) -> None:
    await fleet.half_used()
    await fleet.asks()
    await fleet.until_over()
    (move,) = await fleet.world.rows(t.moves)
    assert f"({fleet.id})" not in move.reason and f"(defragmentation {fleet.id})" in move.reason
    events = [row for row in await fleet.world.rows(t.job_events) if row.kind == "defragmented"]
    (told,) = [row for row in events if row.job_id == move.job_id]
    assert len(events) == 1
    assert "is vacated: " in told.message
    assert told.data["moves"] == 1
    if fleet.goal is Goal.RENT:
        assert "its rent ends, which saves $4" in told.message
        (freed,) = [row for row in await fleet.world.rows(t.node_events) if row.kind == "defragmented"]
        assert (await fleet.world.node(freed.node_id)).state in ("terminating", "terminated")
    else:
        assert "all 4 GPUs are free" in told.message
    job = await explained(fleet, move.job_id)
    assert [one for one in job if "is vacated" in one]


@pytest.mark.parametrize("goal", [Goal.POOLS])
async def test_a_host_whose_job_stands_by_is_left_alone(fleet: Fragmented) -> None:
    """What is free there is lent to spot jobs, and given back: nobody comes there for good, and nobody leaves."""
    await fleet.half_used()
    world, job_id = fleet.world, fleet.jobs["b"]
    node_id = await world.node_of(job_id)
    row = StandbyRow("stby_1", world.project_id, job_id, node_id, 2, 0, False, 50, 0, 2**40)
    async with world.database.transaction() as connection:
        await add_standby(connection, row)
    plan = await plan_defragmentation(world.database, world.settings, Goal.POOLS, None, 20, now_ms=world.clock.now_ms())
    touched = {place for release in plan.releases for place in release.touched}
    assert plan.releases, "there are two others"
    assert not [place for place in touched if "host_b" in place]
    assert dict(plan.left_alone)[Stays.KEPT] == 1


async def explained(fleet: Fragmented, job_id: str) -> list[str]:
    """How it is explained."""
    world = fleet.world
    async with world.database.transaction() as connection:
        job = await find_job(connection, world.project_id, job_id)
        assert job is not None
        found = await explain_job(connection, world.settings, job, now_ms=world.clock.now_ms())
    return [one.text for one in found.because]


async def begun(fleet: Fragmented) -> Moving:
    """The first move is under way."""
    await fleet.half_used()
    await fleet.asks()
    for _ in range(3):
        await fleet.round()
    (move,) = await fleet.moving()
    return move


@BOTH
async def test_a_move_that_fails_leaves_nothing_worse(fleet: Fragmented) -> None:
    """Its target is never prepared: the job trains on where it was, nothing is rented for it any more, and it rests."""
    world = fleet.world
    move = await begun(fleet)
    nodes = {row.id for row in await world.rows(t.nodes) if row.state == "ready"}
    used = await fleet.used()
    world.clock.advance(s=world.settings.move_timeout_s + 1)
    for node_id in nodes:
        await world.beat(node_id)
    await world.check_heartbeats()
    shown = await fleet.until_over()
    assert (shown.row.end_message, await fleet.states()) == ("0 of 1 node vacated", ["dropped"])
    assert f"the move of {move.job_id} failed: the next machine was not prepared" in await fleet.why()
    assert (await world.job(move.job_id)).state == "running"
    assert await fleet.used() == used
    assert {row.state for row in await world.rows(t.moves)} == {"abandoned"}
    await fleet.asks()
    again = await fleet.until_over()
    assert [one.release.steps[0].job_id for one in again.releases] != [move.job_id], "it rests"
    await world.check_invariants()


@BOTH
async def test_a_job_that_ends_meanwhile_needs_no_move(fleet: Fragmented) -> None:
    move = await begun(fleet)
    await move.cancel()
    await move.says(move.source, "exited", 60, signal=9)
    shown = await fleet.until_over()
    assert (shown.row.end_message, await fleet.states()) == ("1 of 1 node vacated", ["freed"])


@BOTH
async def test_a_job_that_pauses_meanwhile_is_left_alone(fleet: Fragmented) -> None:
    """It saves and leaves, as its owner wants it; its node is vacated all the same."""
    move = await begun(fleet)
    await move.pause()
    assert (await fleet.world.job(move.job_id)).state == "checkpointing"
    await move.saves(move.source, 60, final=True)
    await move.says(move.source, "exited", 60, exit_code=0, saved_after_stop=True)
    await fleet.until_over()
    assert (await fleet.world.job(move.job_id)).state == "paused"
    assert await fleet.states() == ["freed"]


@BOTH
async def test_a_job_that_is_pinned_between_plan_and_move_stays(fleet: Fragmented) -> None:
    """And who was to leave with it, too: half a node is vacated in vain."""
    await fleet.half_used(2)
    await fleet.asks()
    await fleet.round()
    (planned,) = (await fleet.shown()).releases
    pinned = planned.release.steps[-1].job_id
    await fleet.world.set_job(pinned, affinity={"locked": True}, row_version=7)
    shown = await fleet.until_over()
    assert (shown.row.end_message, await fleet.world.rows(t.moves)) == ("0 of 1 node vacated", [])
    assert f"{pinned} has to stay: it is locked to its machine" in await fleet.why()


@BOTH
async def test_a_machine_that_vanishes_drops_what_was_to_go_there(fleet: Fragmented) -> None:
    """The jobs that were there go on elsewhere when they can; who was to move there trains on."""
    world = fleet.world
    await fleet.half_used(2)
    await fleet.asks()
    await fleet.round()
    (planned,) = (await fleet.shown()).releases
    step = planned.release.steps[0]
    target = next(
        one for one in ("a", "b") if one in (step.target.removeprefix("host_")[:1], _name(fleet, step.target))
    )
    for node in await world.rows(t.nodes):
        if node.id == fleet.nodes.get(target) or node.host == f"host_{target}/A100":
            await _lose(fleet, node.id)
    if fleet.goal is Goal.POOLS:
        async with world.database.transaction() as connection:
            await connection.execute(update(t.hosts).where(t.hosts.c.name == target).values(left_ms=1))
    await fleet.until_over()
    assert await fleet.states() == ["dropped"]
    assert await world.rows(t.moves) == []
    assert (await world.job(step.job_id)).state == "running"


def _name(fleet: Fragmented, node_id: str) -> str | None:
    return next((name for name, one in fleet.nodes.items() if one == node_id), None)


async def _lose(fleet: Fragmented, node_id: str) -> None:
    world = fleet.world
    async with world.database.transaction() as connection:
        await lose_node(connection, world.ids, node_id, "silent", now_ms=world.clock.now_ms(), fault_budget=3)


async def test_prices_that_have_changed_between_plan_and_move_drop_it(fleet: Fragmented) -> None:
    """Rent that costs nothing any more is not ended for a pause of a job."""
    await fleet.half_used()
    await fleet.asks()
    await fleet.round()
    async with fleet.world.database.transaction() as connection:
        await connection.execute(update(t.nodes).values(price_micros_per_hour=0, row_version=9))
    await fleet.until_over()
    assert (await fleet.states(), await fleet.world.rows(t.moves)) == (["dropped"], [])
    assert "at present prices" in await fleet.why()


@BOTH
async def test_a_plan_that_is_old_is_not_begun(fleet: Fragmented) -> None:
    await fleet.half_used()
    await fleet.asks()
    await fleet.round()
    await fleet.round(STALE_MS + 1)
    assert (await fleet.states(), await fleet.world.rows(t.moves)) == (["dropped"], [])
    assert await fleet.why() == "its plan is 30 min old"


@BOTH
async def test_who_comes_to_a_node_meanwhile_is_not_driven_away(fleet: Fragmented) -> None:
    move = await begun(fleet)
    source = await fleet.world.node((await move.place(move.source))[0])
    where = str(source.host).removeprefix("host_").partition("/")[0] or _name(fleet, source.id)
    assert where is not None
    came = await fleet.trains("new", where, 1, first=3, checkpoint_step=None)
    await fleet.until_over()
    assert await fleet.states() == ["dropped"]
    assert came in await fleet.why()
    assert (await fleet.world.job(came)).state == "running"


@BOTH
async def test_what_is_called_off_begins_nothing_more_and_what_has_begun_ends_as_moves_do(fleet: Fragmented) -> None:
    move = await begun(fleet)
    await fleet.calls_off()
    await fleet.round()
    assert (await fleet.shown()).row.ended_ms is None
    await fleet.completes(move)
    shown = await fleet.until_over()
    assert shown.row.state == "cancelled"
    assert len(await fleet.world.rows(t.moves)) == 1


async def test_one_of_its_goal_is_open_at_a_time(fleet: Fragmented) -> None:
    await fleet.half_used()
    first = await fleet.asks()
    with pytest.raises(Conflict, match=f"{first} is under way for the goal rent"):
        await fleet.asks()


@BOTH
async def test_no_more_moves_at_once_than_was_set(fleet: Fragmented) -> None:
    """Three jobs of one node, and room for all of them: one after the other."""
    fleet.world.settings.defrag_moves_at_once = 1
    for name in "abcd":
        await fleet.machine(name, 4)
    for name in "bcd":
        await fleet.trains(name, name, 3)
    for number in range(3):
        await fleet.trains(f"a{number}", "a", 1, first=number)
    await fleet.asks()
    for _ in range(30):
        await fleet.round()
        moving = await fleet.moving()
        assert len(moving) <= 1
        for move in moving:
            await fleet.completes(move)
        await fleet.world.decide()
        await fleet.world.work()
    assert await fleet.states() == ["freed"], await fleet.why()
    assert len(await fleet.world.rows(t.moves)) == 3


LEFT_ALONE = {
    "never saved": {"checkpoint_step": None},
    "does not say that it saves": {"saves_ms": None},
    "pinned": {"affinity": {"locked": True}},
    "about to pause": {"pause_reason": "user"},
    "on several machines": {"resources": resources_json(Resources(2, 2, nodes=2))},
    "beside others": {"affinity": {"affinity": {"team": "a"}}},
    "refused": {"refused_why": "it has no files", "refused_ms": 1},
    "not this number of GPUs": {"resources": resources_json(Resources(1, 1))},
}


@pytest.mark.parametrize("columns", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
@BOTH
async def test_who_is_left_alone(fleet: Fragmented, columns: dict[str, Any]) -> None:
    """With both jobs free to move there is one move (the tests above); with both of these there is none."""
    for name in "ab":
        await fleet.machine(name)
        await fleet.trains(name, name, 2, **columns)
    await fleet.asks()
    shown = await fleet.until_over()
    assert (shown.row.end_message, await fleet.world.rows(t.moves)) == ("there was nothing to vacate", [])
    assert sum(shown.row.found["left_alone"].values()) == 2, shown.row.found


async def test_a_job_that_has_just_come_or_soon_ends_is_left_alone(fleet: Fragmented) -> None:
    for name in "ab":
        await fleet.machine(name)
        await fleet.trains(name, name, 2)
    async with fleet.world.database.transaction() as connection:
        await connection.execute(update(t.runs).values(running_ms=fleet.world.clock.now_ms() - 20_000))
    await fleet.asks()
    shown = await fleet.until_over()
    assert shown.row.found["left_alone"] == {"began there, or came there, a short while ago": 2}


async def test_by_schedule_rent_is_ended_where_it_pays(fleet: Fragmented) -> None:
    assert fleet.world.settings.defrag_every_s == 0, "nothing moves unless an owner says so"
    fleet.world.settings.defrag_every_s = 3_600
    await fleet.half_used()
    await fleet.round()
    assert await fleet.world.rows(t.defragmentations) == []
    await fleet.round(round(fleet.world.settings.defrag_every_s * 1000))
    (row,) = await fleet.world.rows(t.defragmentations)
    fleet.id = row.id
    assert (row.begun_by, (await fleet.until_over()).row.end_message) == ("schedule", "1 of 1 node vacated")
    await fleet.round(round(fleet.world.settings.defrag_every_s * 1000))
    assert len(await fleet.world.rows(t.defragmentations)) == 1, "nothing is written where there is nothing to gain"


@pytest.mark.parametrize("goal", [Goal.POOLS])
async def test_by_schedule_hosts_are_vacated_when_somebody_waits_for_a_whole_one(fleet: Fragmented) -> None:
    every_ms = 3_600_000
    fleet.world.settings.defrag_every_s = 3_600
    await fleet.half_used()
    await fleet.round()
    await fleet.round(every_ms)
    assert await fleet.world.rows(t.defragmentations) == []
    waits = await fleet.world.submit(resources=resources_json(Resources(4, 4)))
    await fleet.round(every_ms)
    (row,) = await fleet.world.rows(t.defragmentations)
    fleet.id = row.id
    await fleet.until_over()
    for _ in range(3):
        await fleet.world.decide()
        await fleet.round()
    assert (await fleet.world.job(waits)).state == "starting"


async def test_a_row_that_nobody_can_read_is_given_up(fleet: Fragmented) -> None:
    """It does not keep others of its goal from their turn for ever."""
    await fleet.half_used()
    await fleet.asks()
    await fleet.round()
    async with fleet.world.database.transaction() as connection:
        await connection.execute(update(t.node_releases).values(steps=[{"no": "step"}]))
    assert sum([await fleet.round() for _ in range(10)]) == 10
    (row,) = await fleet.world.rows(t.defragmentations)
    assert (row.state, row.end_message) == ("failed", "it failed again and again: an error of the service")


@BOTH
async def test_it_goes_on_wherever_the_server_dies(fleet: Fragmented, database_url: str, sweep: bool) -> None:
    """After any of its statements: each move is begun once, no machine is rented twice, and the end is the same."""
    world, stride = fleet.world, 1 if sweep else 9
    await fleet.half_used()
    await fleet.asks()
    engine, alive, died = make_engine(database_url, pool_size=4, timeout_s=60), world.database, 0
    try:
        for lifetime in range(3, 3_000, stride):
            world.seen_by_control = DyingDatabase(engine, lifetime)
            await world.restart()
            world.clock.advance(ms=1_000)
            await fleet.heard()
            try:
                await world.control.do(Chore.DEFRAG)
            except KilledError:
                died += 1
            world.seen_by_control = alive
            await world.restart()
            await fleet.works()
            for move in await fleet.moving():
                await fleet.completes(move)
            if (await fleet.shown()).row.ended_ms is not None:
                break
    finally:
        world.seen_by_control = alive
        await world.restart()
        await engine.dispose()
    assert died > 5
    assert (await fleet.until_over()).row.end_message == "1 of 1 node vacated"
    assert [row.state for row in await world.rows(t.moves)] == ["done"]
    assert len(await fleet.used()) == 2
