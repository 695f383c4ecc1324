"""A decision goes on without what makes it fail: a job, or a row that cannot be read. Both are told, and harm nobody
else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import ColumnElement, Table, text, update

from app.control.failed_actions import HELD_AFTER, MOST_HELD, RESTS_MS
from app.core.board import Board
from app.core.merging.transfer import IN_TURN
from app.core.model.job import PauseReason
from app.core.model.merge import MergeMode
from app.core.model.plan import ActionKind, Merge, Plan
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState
from app.db import tables as t
from app.db.decisions.health import read_health
from app.db.decisions.item_failures import failures_now
from app.db.decisions.next_jobs import waiting_jobs
from app.db.decisions.snapshots import freeze, read_snapshot
from app.db.tables import merges
from app.db.unreadable import RowReading
from app.services.jobs.resume_job import resume_job
from app.services.reading.describe_health import describe_health
from tests.control.test_failing_actions import VERSIONS, _enact
from tests.control.world import World
from tests.seeds import seed_node, seed_run


class Refusing:
    """A policy that raises when it sees one of these jobs."""

    name = "fixed-threshold"
    uses = frozenset[ActionKind]()

    def __init__(self, poison: Collection[str]) -> None:
        self.poison = set(poison)

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        if self.poison & set(board.jobs):
            raise ZeroDivisionError("secret of the service")
        return policy_named("fixed-threshold").decide(board, state, config)


def _refuse(world: World, *job_ids: str) -> None:
    world.control.loop._policy = Refusing(job_ids)


async def _decide_in_turn(world: World, times: int) -> None:
    for _ in range(times):
        await world.decide()
        world.clock.advance(ms=RESTS_MS[2] + 1)


async def _degraded(world: World) -> dict[str, int]:
    async with world.database.transaction() as connection:
        return {one.part: one.failures for one in await describe_health(connection, now_ms=world.clock.now_ms())}


async def _failed_decisions(world: World) -> int:
    async with world.database.transaction() as connection:
        return sum(part.failures for part in await read_health(connection) if part.kind == "decision")


async def test_a_job_that_makes_decisions_fail_is_told_once_and_held_after_three(world: World) -> None:
    """The others start in the very first decision. What its owner reads names no error of ours."""
    bad, good = await world.submit(), await world.submit()
    _refuse(world, bad)
    await world.decide()
    assert (await world.job(good)).state == "starting"
    assert "an error of the service" in (await world.job(bad)).wait_reason
    assert await _degraded(world) == {"decision": 1}
    world.clock.advance(ms=RESTS_MS[2] + 1)
    await _decide_in_turn(world, HELD_AFTER - 1)
    job = await world.job(bad)
    assert (job.state, job.pause_reason) == ("paused", PauseReason.INTERNAL_ERROR)
    assert (await world.events(bad)).count("decision_failed") == 1
    assert not [row for row in await world.rows(t.job_events) if "secret" in row.message]
    assert await _failed_decisions(world) == HELD_AFTER


async def test_a_held_job_goes_on_when_it_is_resumed_and_decisions_bear_it(world: World) -> None:
    """And nothing is told as degraded any more."""
    bad = await world.submit()
    _refuse(world, bad)
    await _decide_in_turn(world, HELD_AFTER)
    _refuse(world)
    async with world.database.transaction() as connection:
        await resume_job(connection, world.project_id, bad, now_ms=world.clock.now_ms())
    await world.decide()
    assert (await world.job(bad)).state == "starting"
    assert await _degraded(world) == {}


async def test_a_job_that_runs_is_left_out_and_runs_on(world: World) -> None:
    """It is never paused for it; its machine is neither released nor given to others; and it is looked at again, later
    and later."""
    job_id, node_id = await world.run_on_serverless()
    _refuse(world, job_id)
    for count in range(1, 6):
        await world.beat(node_id)
        await world.decide()
        async with world.database.transaction() as connection:
            known = (await failures_now(connection))[job_id, "decision"]
        assert known.in_a_row == count
        world.clock.advance(ms=known.not_before_ms - world.clock.now_ms())
    assert (await world.job(job_id)).state == "running"
    assert (await world.node(node_id)).state == "ready"
    _refuse(world)
    await world.decide()
    async with world.database.transaction() as connection:
        assert await failures_now(connection) == {}


async def test_where_decisions_fail_on_very_many_jobs_none_is_held(world: World) -> None:
    """It is the policy then; they start by themselves when it is mended."""
    jobs = [await world.submit() for _ in range(MOST_HELD + 5)]
    _refuse(world, *jobs)
    await _decide_in_turn(world, HELD_AFTER + 2)
    assert {(await world.job(job_id)).state for job_id in jobs} == {"queued"}
    _refuse(world)
    world.clock.advance(s=3_601)
    await world.decide()
    assert {(await world.job(job_id)).state for job_id in jobs} == {"starting"}


async def test_a_decision_that_fails_with_nobody_to_blame_is_told_as_degraded(world: World) -> None:
    """Every process can read it; it is over with the next decision that succeeds."""

    class Broken(Refusing):
        def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
            raise KeyError("traits")

    loop = world.control.loop
    loop._policy = Broken(())
    for _ in range(2):
        with pytest.raises(KeyError) as raised:
            await world.decide()
        await loop._tell_failed(raised.value)
    assert await _degraded(world) == {"decide": 2}
    _refuse(world)
    await world.decide()
    assert await _degraded(world) == {}
    assert await _failed_decisions(world) == 2


async def test_a_leader_that_does_not_decide_any_more_is_told(world: World) -> None:
    """It hangs, and tells nothing: what was due is not done."""
    await world.decide()
    assert await _degraded(world) == {}
    world.clock.advance(s=5 * world.settings.tick_s + 1)
    assert await _degraded(world) == {"decide": 0}
    await world.control.context.health.begin({"decide": world.settings.tick_s})  # another one leads
    assert await _degraded(world) == {}


# Rows that cannot be read


@dataclass(frozen=True)
class Unread:
    """A row that is spoiled: of which table, how; and the jobs that must not be touched for it."""

    table: Table
    columns: dict[str, Any]
    row_id: str
    untouched: tuple[str, ...]


NEWER = "of a newer release"


def _is_row(table: Table, row_id: str) -> ColumnElement[bool]:
    (key,) = [column for column in table.primary_key.columns if column.name in ("id", "offer_id")]
    return key == row_id.rpartition("/")[2]


async def _spoil(world: World, table: Table, row_id: str, columns: dict[str, Any]) -> None:
    """As somebody may by hand, who has taken constraints away."""
    async with world.database.transaction() as connection:
        for name in (name for name, value in columns.items() if value is None):
            await connection.execute(text(f"ALTER TABLE {table.name} ALTER COLUMN {name} DROP NOT NULL"))
        await connection.execute(update(table).where(_is_row(table, row_id)).values(**columns))


async def _held_job(world: World, **columns: Any) -> tuple[str, str, str]:
    """A job that runs on half of a node of its own."""
    job_id = await world.submit(state="running", epoch=1, first_running_ms=world.clock.now_ms(), **columns)
    async with world.database.transaction() as connection:
        node_id = await seed_node(connection, world.project_id, provider="cloud", gpu_count=2)
        run_id = await seed_run(connection, world.project_id, job_id, node_id)
    await world.beat(node_id)
    return job_id, run_id, node_id


def _job(**columns: Any) -> Callable[[World], Awaitable[Unread]]:
    async def spoil(world: World) -> Unread:
        job_id = await world.submit()
        return Unread(t.jobs, columns, job_id, (job_id,))

    return spoil


def _running_job(**columns: Any) -> Callable[[World], Awaitable[Unread]]:
    async def spoil(world: World) -> Unread:
        job_id, _, _ = await _held_job(world)
        return Unread(t.jobs, columns, job_id, (job_id,))

    return spoil


async def _run(world: World) -> Unread:
    job_id, run_id, _ = await _held_job(world)
    await world.set_job(job_id, state="waiting")  # without its run it would look as if it wanted a place
    return Unread(t.runs, {"purpose": None}, run_id, (job_id,))


async def _node(world: World) -> Unread:
    job_id, _, node_id = await _held_job(world)
    await world.set_job(job_id, state="waiting")
    return Unread(t.nodes, {"tier": None}, node_id, (job_id,))


async def _boundless_node(world: World) -> Unread:
    """Each of its GPUs would be looked at."""
    job_id, _, node_id = await _held_job(world)
    return Unread(t.nodes, {"gpu_count": 2**31 - 1}, node_id, (job_id,))


async def _merge(world: World) -> Unread:
    jobs = [await world.submit() for _ in range(2)]
    merge = Merge(jobs[0], jobs[1], MergeMode.IN_TURN, 1, 0.8, 0.3, "because", VERSIONS)
    assert await _enact(world, merge) == ()
    (row,) = await world.rows(merges)
    return Unread(merges, {"mode": NEWER}, row.id, tuple(jobs))


async def _offer(world: World) -> Unread:
    return Unread(t.offers, {"offer": {"of": NEWER}}, "cloud/market-a100", ())


async def _offer_of_text(world: World) -> Unread:
    return Unread(t.offers, {"offer": NEWER}, "cloud/market-a100", ())


async def _boundless_offer(world: World) -> Unread:
    (row,) = [row for row in await world.rows(t.offers) if row.offer_id == "market-a100"]
    return Unread(t.offers, {"offer": {**row.offer, "gpu_count": 2**31 - 1}}, "cloud/market-a100", ())


async def _version(world: World) -> Unread:
    """Its template is no object, so that nobody can say with whom it could be merged."""
    job_id = await world.submit(affinity=[])
    return Unread(t.jobs, {"template": []}, job_id, (job_id,))


UNREAD: dict[str, Callable[[World], Awaitable[Unread]]] = {
    "a job's resources": _job(resources=[NEWER]),
    "a job's need of GPUs": _job(resources={"gpus_min": NEWER}),
    "a job's kind": _job(kind=None),
    "a job's labels beside whom it runs": _job(affinity={"affinity": 3}),
    "a job's whole affinity": _job(affinity=[]),
    "a running job": _running_job(resources=[], priority_class=None),
    "a run": _run,
    "a node": _node,
    "a node of boundless size": _boundless_node,
    "a merge": _merge,
    "an offer": _offer,
    "an offer that is a text": _offer_of_text,
    "an offer of boundless size": _boundless_offer,
    "a template": _version,
}


@pytest.mark.parametrize("what", UNREAD)
async def test_a_row_that_cannot_be_read_leaves_out_just_what_it_belongs_to(world: World, what: str) -> None:
    """Another job starts beside it, what belongs to the row is not touched, and it is told once, not with each
    decision; once it can be read again, nothing is degraded."""
    unread = await UNREAD[what](world)
    mine = _is_row(unread.table, unread.row_id)
    async with world.database.transaction() as connection:
        before = (await connection.execute(unread.table.select().where(mine))).one()._mapping
    await _spoil(world, unread.table, unread.row_id, unread.columns)
    good = await world.submit()
    states = {job_id: (await world.job(job_id)).state for job_id in unread.untouched}
    loop = world.control.loop
    for _ in range(3):
        await loop.tick("test")
        world.clock.advance(s=10)
    assert (await world.job(good)).state == "starting"
    assert {job_id: (await world.job(job_id)).state for job_id in unread.untouched} == states
    assert not any(node.state == "terminating" for node in await world.rows(t.nodes))
    assert len([run for run in await world.rows(t.runs) if run.state != "ended"]) == len(await world.rows(t.runs))
    for job_id in unread.untouched:
        assert "error of the service" in ((await world.job(job_id)).wait_reason or "error of the service")
        assert (await world.events(job_id)).count("row_unreadable") == (1 if job_id == unread.row_id else 0)
    assert await _degraded(world) == {f"row {unread.table.name}": 1}
    async with world.database.transaction() as connection:
        (counted,) = [part for part in await read_health(connection) if part.kind == "row"]
        assert (counted.name, counted.failures) == (unread.table.name, 1)
        await connection.execute(update(unread.table).where(mine).values(**{n: before[n] for n in unread.columns}))
    await loop.tick("test")
    assert await _degraded(world) == {} or what == "a template"  # its affinity was none from the beginning


async def _newer_state(world: World) -> str:
    job_id = await world.submit()
    await world.set_job(job_id, state=NEWER)
    return job_id


async def _newer_run(world: World) -> str:
    job_id, run_id, _ = await _held_job(world)
    await _spoil(world, t.runs, run_id, {"state": NEWER, "purpose": NEWER, "tier": NEWER})
    return job_id


async def _newer_node(world: World) -> str:
    job_id, _, node_id = await _held_job(world)
    await _spoil(world, t.nodes, node_id, {"state": NEWER, "tier": NEWER})
    return job_id


@pytest.mark.parametrize("spoil", [_newer_state, _newer_run, _newer_node], ids=["job", "run", "node"])
async def test_words_of_a_newer_release_are_read_and_nothing_is_left_out_for_them(
    world: World, spoil: Callable[[World], Awaitable[str]]
) -> None:
    """What they stand for here begins nothing (ADR 0038): the job stays as it is, and another one starts beside it."""
    job_id = await spoil(world)
    before = (await world.job(job_id)).state
    good = await world.submit()
    seen, reading = await _see(world)
    assert job_id in [job.job_id for job in seen.jobs]
    assert reading == RowReading()
    await world.decide()
    assert (await world.job(good)).state == "starting"
    assert (await world.job(job_id)).state == before
    assert await _degraded(world) == {}


async def _see(world: World) -> tuple[Snapshot, RowReading]:
    reading = RowReading()
    async with world.database.transaction() as connection:
        await freeze(connection)
        traits = world.control.context.traits()
        seen = await read_snapshot(connection, world.clock.now_ms(), traits, 10**9, merging=True, reading=reading)
    return seen, reading


async def test_what_only_helps_a_decision_is_done_without(world: World) -> None:
    """A history of which nothing is a number, and gains that are none: jobs are seen without what they would say."""
    job_id = await world.submit()
    none = float("nan")
    row = {"app_id": world.app[0], "gpu_type": "a100", "samples": 0, "run_ms": none, "step_ms": none, "updated_ms": 0}
    async with world.database.transaction() as connection:
        await connection.execute(t.run_history.insert().values(**row))
        await connection.execute(t.run_history.insert().values(**row | {"gpu_type": "h100", "samples": -7}))
    jobs = [await world.submit() for _ in range(2)]
    merge = Merge(jobs[0], jobs[1], MergeMode.IN_TURN, 1, 0.8, 0.3, "because", VERSIONS)
    assert await _enact(world, merge) == ()
    async with world.database.transaction() as connection:
        over = {"state": "ended", "ended_ms": 1, "seen_gain": float("nan")}
        await connection.execute(update(merges).values(**over))
    seen, reading = await _see(world)
    assert [job.job_id for job in seen.jobs] == sorted([job_id, *jobs])
    assert seen.gains == IN_TURN
    assert sorted(reading.unread) == [("merges", "")]


async def test_a_healthy_world_reads_without_a_word(world: World) -> None:
    """Nothing is noted, counted or kept where everything works."""
    await world.run_on_serverless()
    _, reading = await _see(world)
    assert reading == RowReading()
    await world.decide()
    assert await _degraded(world) == {}


async def test_nodes_that_are_not_seen_count_for_the_limits(world: World) -> None:
    """A limit of machines is one of money: a node that cannot be read is there all the same."""
    limits: list[tuple[int, int]] = []

    class Noting(Refusing):
        def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
            limits.append((config.serverless_limit, config.serverful_limit))
            return Refusing.decide(self, board, state, config)

    world.control.loop._policy = Noting(())
    await world.decide()
    async with world.database.transaction() as connection:
        node_id = await seed_node(connection, world.project_id, provider="cloud")
    await _spoil(world, t.nodes, node_id, {"gpu_count": None})
    await world.decide()
    assert limits[1] == (limits[0][0], limits[0][1] - 1)


async def test_what_another_release_remembered_is_forgotten_rather_than_stumbled_over(world: World) -> None:
    """After a release is rolled back, the new leader decides from the beginning."""
    job_id = await world.submit()
    world.cloud.on_offer, offers = [], world.cloud.on_offer
    await world.decide()
    async with world.database.transaction() as connection:
        await connection.execute(update(t.ticks).values(policy_state={"of": NEWER}))
    world.cloud.on_offer = offers
    await world.restart()
    await world.decide()
    assert (await world.job(job_id)).state == "starting"


async def test_agents_are_advised_of_jobs_that_can_be_read(world: World) -> None:
    """What a node fetches ahead is read of all that wait in its project, with every answer to its agent: one row that
    cannot be read must not leave those without orders who train."""
    bad, good = await world.submit(), await world.submit()
    await world.set_job(bad, resources=[NEWER])
    async with world.database.transaction() as connection:
        found = await waiting_jobs(connection, world.project_id, now_ms=world.clock.now_ms(), usual_image="")
    assert [job.view.job_id for job in found] == [good]
