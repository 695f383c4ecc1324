"""A plan becomes true in one transaction; what has moved on is dropped and told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.control.enact import Dropped, enact
from app.core import codec
from app.core.board import Board
from app.core.model.job import Resources
from app.core.model.plan import Action, Assign, Demote, Plan, Provision, Release, Start
from app.core.policy import PolicyState
from app.core.recording import read_record
from app.db import tables as t
from app.db.decisions.ticks import last_state
from app.services.jobs.cancel_job import cancel_job
from tests.control.world import World


async def _enact(world: World, *actions: Action) -> tuple[Dropped, ...]:
    context = world.control.context
    async with world.database.transaction() as connection:
        await context.leader.guard(connection)
        return await enact(connection, context, actions, now_ms=world.clock.now_ms())


async def _versions(world: World, *ids: str) -> tuple[tuple[str, int], ...]:
    tables = {"job": t.jobs, "run": t.runs, "node": t.nodes}
    rows = {row_id: await world._row(tables[row_id.partition("_")[0]], row_id) for row_id in sorted(ids)}
    return tuple((row_id, row.row_version) for row_id, row in rows.items())


async def _start(world: World, job_id: str) -> Start:
    return Start(job_id, world.cloud.on_offer[0], "because", await _versions(world, job_id))


async def _ready_node(world: World, job_id: str, gpus: int = 2) -> str:
    offer = replace(world.cloud.on_offer[1], gpu_count=gpus)
    world.cloud.on_offer[1] = offer
    project_id = world.project_id
    rent = Provision(project_id, job_id, offer, "for a job", await _versions(world, job_id))
    assert await _enact(world, rent) == ()
    await world.work()
    node = await world.newest_node()
    await world.boot(node.id)
    return str(node.id)


async def test_a_start_writes_node_run_epoch_allocation_and_operation_at_once(world: World) -> None:
    """All rows of a start appear together, and the job's epoch is the run's."""
    job_id = await world.submit()
    assert await _enact(world, await _start(world, job_id)) == ()
    (node,) = await world.rows(t.nodes)
    (run,) = await world.rows(t.runs)
    (held,) = await world.rows(t.allocations)
    (operation,) = await world.rows(t.provider_operations)
    (run_job,) = await world.rows(t.run_jobs)
    job = await world.job(job_id)
    assert (job.state, job.epoch, run_job.epoch) == ("starting", 1, 1)
    assert (node.state, node.rented_for_job_id, node.price_micros_per_hour) == ("requested", job_id, 2_100_000)
    assert (run.state, held.node_id, held.gpu_indices) == ("assigned", node.id, [0])
    assert (operation.kind, operation.state, operation.node_id) == ("create", "pending", node.id)
    assert codec.encode(world.cloud.on_offer[0]) == node.offer


async def test_what_is_rented_ahead_is_nobody_s(world: World) -> None:
    """The job in whose name it was decided neither pays for its start nor is held back when it cannot be had."""
    job_id = await world.submit()
    offer = world.cloud.on_offer[1]
    versions = await _versions(world, job_id)
    assert (
        await _enact(world, Provision(world.project_id, job_id, offer, "for those to come", versions, ahead=True)) == ()
    )
    (node,) = await world.rows(t.nodes)
    assert (node.state, node.rented_for_job_id, node.project_id) == ("requested", None, world.project_id)
    assert "node_rented" not in [one.kind for one in await world.rows(t.job_events)]
    world.cloud.on_offer.remove(offer)
    await world.work()
    job = await world.job(job_id)
    assert (job.not_before_ms, job.avoided_offers) == (0, [])


async def test_an_action_on_a_row_that_moved_on_is_dropped_and_the_rest_is_enacted(world: World) -> None:
    """The stale one leaves an event and no row; the other start happens."""
    stale, fresh = await world.submit(), await world.submit()
    late = await _start(world, stale)
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, stale, now_ms=world.clock.now_ms())
    (dropped,) = await _enact(world, late, await _start(world, fresh))
    assert dropped.action is late
    assert "has moved on" in dropped.why
    assert (await world.job(fresh)).state == "starting"
    assert (await world.job(stale)).state == "cancelled"
    assert len(await world.rows(t.nodes)) == 1
    assert "action_dropped" in await world.events(stale)


async def test_a_second_action_on_the_same_job_writes_nothing(world: World) -> None:
    """A plan that places one job twice places it once: the second is undone to its last row."""
    job_id = await world.submit()
    start = await _start(world, job_id)
    (dropped,) = await _enact(world, start, start)
    assert "does not wait for a place" in dropped.why
    assert len(await world.rows(t.nodes)) == len(await world.rows(t.runs)) == 1
    assert (await world.job(job_id)).epoch == 1


async def test_gpus_are_given_out_once(world: World) -> None:
    """Two assignments to one GPU: the second is dropped; another GPU of the node is fine."""
    jobs = [await world.submit() for _ in range(3)]
    node_id = await _ready_node(world, jobs[0])
    places = [(0,), (0,), (1,)]
    actions = [
        Assign(job_id, node_id, gpus, "because", await _versions(world, job_id, node_id))
        for job_id, gpus in zip(jobs, places, strict=True)
    ]
    before = await world.node(node_id)
    (dropped,) = await _enact(world, *actions)
    assert dropped.action is actions[1]
    assert sorted(row.gpu_indices for row in await world.rows(t.allocations)) == [[0], [1]]
    node = await world.node(node_id)
    assert node.idle_since_ms is None
    assert node.row_version > before.row_version
    assert node.desired_version > before.desired_version


@pytest.mark.parametrize("gpus", [(2,), (0, 5)])
async def test_a_gpu_that_the_node_does_not_have_is_not_given_out(world: World, gpus: tuple[int, ...]) -> None:
    """Indices beyond the node's own are refused."""
    job_id = await world.submit()
    node_id = await _ready_node(world, job_id)
    assign = Assign(job_id, node_id, gpus, "because", await _versions(world, job_id, node_id))
    assert len(await _enact(world, assign)) == 1


async def test_a_release_of_a_node_that_got_a_run_is_dropped(world: World) -> None:
    """Assign and release in one plan: who comes first wins, and no run loses its node."""
    job_id = await world.submit()
    node_id = await _ready_node(world, job_id)
    versions = await _versions(world, job_id, node_id)
    release = Release(node_id, "idle", await _versions(world, node_id))
    (dropped,) = await _enact(world, Assign(job_id, node_id, (0,), "because", versions), release)
    assert dropped.action is release
    assert (await world.node(node_id)).state == "ready"
    assert await _enact(world, replace(release, versions=await _versions(world, node_id)))


async def test_a_demotion_asks_run_job_and_agent(world: World) -> None:
    """The run stops with a checkpoint, the job saves, and the agent's orders have a new version."""
    job_id, node_id = await world.run_on_serverless()
    (run,) = await world.rows(t.runs)
    before = (await world.node(node_id)).desired_version
    demote = Demote(job_id, run.id, "F is used up", await _versions(world, job_id, run.id))
    assert await _enact(world, demote) == ()
    (run,) = await world.rows(t.runs)
    assert (run.state, run.stop_mode, run.stop_asked_ms) == ("stopping", "checkpoint", world.clock.now_ms())
    assert (await world.job(job_id)).state == "checkpointing"
    assert (await world.node(node_id)).desired_version > before
    assert len(await _enact(world, replace(demote, versions=()))) == 1, "it is leaving already"


async def test_an_action_on_a_row_that_does_not_exist_is_dropped(world: World) -> None:
    """Nothing is told to anybody who is not there, and nothing fails."""
    (dropped,) = await _enact(world, Start("job_gone", world.cloud.on_offer[0], "because", (("job_gone", 1),)))
    assert "does not exist" in dropped.why
    (dropped,) = await _enact(world, Release("node_gone", "idle", (("node_gone", 1),)))
    assert "does not exist" in dropped.why


async def test_an_offer_of_an_unknown_provider_is_not_rented(world: World) -> None:
    """An offer left over from a provider that is not configured any more is dropped."""
    job_id = await world.submit()
    start = await _start(world, job_id)
    (dropped,) = await _enact(world, replace(start, offer=replace(start.offer, provider="gone")))
    assert "not configured" in dropped.why
    assert await world.rows(t.nodes) == []


async def test_a_tick_keeps_what_was_seen_and_chosen(world: World) -> None:
    """What is recorded is the very snapshot and plan; explanations read the plan without the waits."""
    await world.submit()
    decision = await world.decide()
    (tick,) = await world.rows(t.ticks)
    (offers,) = await world.rows(t.tick_offers)
    recorded = read_record(tick.recorded, None, offers.recorded)
    assert (recorded.snapshot, recorded.plan) == (decision.snapshot, decision.plan)
    assert codec.decode(Plan, tick.plan) == replace(decision.plan, waiting=())
    assert (tick.policy, tick.term, tick.dropped, tick.trigger) == ("fixed-threshold", 1, 0, "test")


async def test_ticks_that_change_nothing_do_not_flood_the_table(world: World) -> None:
    """Idle decisions are stored once per tick interval."""
    for _ in range(10):
        await world.decide()
        world.clock.advance(s=10)
    assert len(await world.rows(t.ticks)) == 2


async def test_a_policy_goes_on_from_what_it_remembered(world: World) -> None:
    """After a restart the new leader's policy gets the state of the last stored tick."""
    seen: list[PolicyState] = []

    class Counting:
        name = "counting"
        uses = frozenset[Any]()

        def decide(self, board: Board, state: PolicyState, config: object) -> tuple[Plan, PolicyState]:
            seen.append(state)
            count = dict(state.values).get("ticks", 0.0) + 1
            return Plan(self.name), PolicyState((("ticks", count),))

    world.control.loop._policy = Counting()
    await world.decide()
    await world.restart()
    world.control.loop._policy = Counting()
    await world.decide()
    assert [dict(state.values) for state in seen] == [{}, {"ticks": 1.0}]
    async with world.database.transaction() as connection:
        assert dict((await last_state(connection, "counting")).values) == {"ticks": 2.0}


async def test_a_plan_of_many_actions_is_enacted_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """More actions than one transaction takes: all of them happen, and one tick tells of them."""
    monkeypatch.setattr("app.control.loop._ACTIONS_AT_ONCE", 2)
    jobs = [await world.submit() for _ in range(5)]
    await world.decide()
    assert [(await world.job(job_id)).state for job_id in jobs] == ["starting"] * 5
    (tick,) = await world.rows(t.ticks)
    assert (len(tick.plan["actions"]), tick.dropped) == (5, 0)


async def test_a_decision_is_bounded_and_the_next_one_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """More actions than one decision may take: who was submitted meanwhile has to wait for a few only. The rest is
    decided anew, soon."""
    monkeypatch.setattr("app.control.loop._MOST_ACTIONS", 3)
    jobs = [await world.submit() for _ in range(5)]
    await world.decide()
    assert [(await world.job(job_id)).state for job_id in jobs] == ["starting"] * 3 + ["queued"] * 2
    assert world.control.loop._wake_at_ms == world.clock.now_ms() + 1_000
    await world.decide()
    assert [(await world.job(job_id)).state for job_id in jobs] == ["starting"] * 5
    assert [len(tick.plan["actions"]) for tick in await world.rows(t.ticks)] == [3, 2]


async def test_why_a_job_waits_is_kept_without_making_anything_stale(world: World) -> None:
    """The reason changes the job's words, not its row version, and goes when the job starts."""
    world.cloud.on_offer = []
    job_id = await world.submit()
    before = (await world.job(job_id)).row_version
    await world.decide()
    job = await world.job(job_id)
    assert "no provider offers a machine" in job.wait_reason
    assert job.row_version == before


async def test_a_custom_image_travels_to_the_node(world: World) -> None:
    """The app's base image is what the node is rented with."""
    job_id = await world.submit(resources=codec.encode(Resources(base_image="my/image:1")))
    await _enact(world, await _start(world, job_id))
    assert (await world.newest_node()).image == "my/image:1"
