"""An action that fails harms no other: it is dropped, tried again, and in the end its job is held."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from app.control.enact import Dropped, enact_apart
from app.control.failed_actions import EFFORTS, HELD_AFTER, MOST_HELD, RESTS_MS
from app.control.loop import policy_config
from app.core.model.job import PauseReason
from app.core.model.merge import MergeMode
from app.core.model.plan import (
    Action,
    ActionKind,
    Assign,
    Demote,
    Merge,
    Migrate,
    Preempt,
    Provision,
    Release,
    Split,
    Start,
)
from app.db import tables as t
from app.db.decisions.health import read_health
from app.db.decisions.item_failures import failures_now
from app.db.tables import merges
from app.errors import Conflict
from app.services.jobs.resume_job import resume_job
from tests.control.poison import heal, poison
from tests.control.world import World, make_settings
from tests.seeds import seed_node, seed_run

VERSIONS: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two actions of one kind, the table and word that poison the first, and a look at whether one was done."""

    actions: tuple[Action, Action]
    table: str
    word: str
    done: Callable[[Action], Awaitable[bool]]


async def _running(world: World, **node: Any) -> tuple[str, str, str]:
    """A job that runs: its id, its run's, its node's."""
    job_id = await world.submit(state="running", epoch=1, first_running_ms=world.clock.now_ms())
    async with world.database.transaction() as connection:
        node_id = await seed_node(connection, world.project_id, provider="cloud", **node)
        run_id = await seed_run(connection, world.project_id, job_id, node_id)
    return job_id, run_id, node_id


async def _free_node(world: World, gpus: int = 1) -> str:
    async with world.database.transaction() as connection:
        return await seed_node(
            connection, world.project_id, provider="cloud", gpu_count=gpus, idle_since_ms=world.clock.now_ms()
        )


def _job_is(world: World, state: str) -> Callable[[Any], Awaitable[bool]]:
    async def look(action: Any) -> bool:
        return bool((await world.job(action.job_id)).state == state)

    return look


async def _starts(world: World) -> Pair:
    jobs = [await world.submit() for _ in range(2)]
    first, second = (Start(job_id, world.cloud.on_offer[0], "because", VERSIONS) for job_id in jobs)
    return Pair((first, second), "run_jobs", first.job_id, _job_is(world, "starting"))


async def _assigns(world: World) -> Pair:
    node_id = await _free_node(world, gpus=2)
    jobs = [await world.submit() for _ in range(2)]
    first, second = (Assign(job_id, node_id, (gpu,), "because", VERSIONS) for gpu, job_id in enumerate(jobs))
    return Pair((first, second), "run_jobs", first.job_id, _job_is(world, "starting"))


async def _provisions(world: World) -> Pair:
    jobs = [await world.submit() for _ in range(2)]
    offer = world.cloud.on_offer[1]
    first, second = (Provision(world.project_id, job_id, offer, "because", VERSIONS) for job_id in jobs)

    async def rented(action: Any) -> bool:
        return action.for_job_id in {node.rented_for_job_id for node in await world.rows(t.nodes)}

    return Pair((first, second), "nodes", first.for_job_id, rented)


async def _demotes(world: World) -> Pair:
    held = [await _running(world) for _ in range(2)]
    first, second = (Demote(job_id, run_id, "because", VERSIONS) for job_id, run_id, _ in held)
    return Pair((first, second), "runs", first.run_id, _job_is(world, "checkpointing"))


async def _preempts(world: World) -> Pair:
    held = [await _running(world) for _ in range(2)]
    first, second = (Preempt(job_id, run_id, "because", VERSIONS) for job_id, run_id, _ in held)
    return Pair((first, second), "runs", first.run_id, _job_is(world, "checkpointing"))


async def _migrates(world: World) -> Pair:
    node_id = await _free_node(world, gpus=2)
    held = [await _running(world) for _ in range(2)]
    first, second = (
        Migrate(job_id, run_id, node_id, (gpu,), "because", VERSIONS) for gpu, (job_id, run_id, _) in enumerate(held)
    )

    async def moves(action: Any) -> bool:
        return action.job_id in {move.job_id for move in await world.rows(t.moves)}

    return Pair((first, second), "moves", first.job_id, moves)


async def _releases(world: World) -> Pair:
    first, second = [Release(await _free_node(world), "because", VERSIONS) for _ in range(2)]

    async def released(action: Any) -> bool:
        return bool((await world.node(action.node_id)).state == "terminating")

    return Pair((first, second), "nodes", first.node_id, released)


async def _merges(world: World) -> Pair:
    jobs = [await world.submit() for _ in range(4)]
    first, second = (
        Merge(lead, companion, MergeMode.IN_TURN, 1, 0.8, 0.3, "because", VERSIONS)
        for lead, companion in (jobs[:2], jobs[2:])
    )

    async def merged(action: Any) -> bool:
        return action.job_id in {row.lead_job_id for row in await world.rows(merges) if row.state == "open"}

    return Pair((first, second), "merges", first.job_id, merged)


async def _splits(world: World) -> Pair:
    made = await _merges(world)
    assert await _enact(world, *made.actions) == ()
    rows = {row.lead_job_id: row.id for row in await world.rows(merges)}
    first, second = (
        Split(one.job_id, one.companion_id, rows[one.job_id], "because", VERSIONS)
        for one in made.actions
        if isinstance(one, Merge)
    )

    async def split(action: Any) -> bool:
        return not await made.done(action)

    return Pair((first, second), "merges", first.merge_id, split)


PAIRS: dict[ActionKind, Callable[[World], Awaitable[Pair]]] = {
    ActionKind.START: _starts,
    ActionKind.ASSIGN: _assigns,
    ActionKind.PROVISION: _provisions,
    ActionKind.DEMOTE: _demotes,
    ActionKind.PREEMPT: _preempts,
    ActionKind.MIGRATE: _migrates,
    ActionKind.RELEASE: _releases,
    ActionKind.MERGE: _merges,
    ActionKind.SPLIT: _splits,
}


async def _enact(world: World, *actions: Action) -> tuple[Dropped, ...]:
    return await enact_apart(world.control.context, actions, now_ms=world.clock.now_ms(), at_once=100)


def test_every_kind_of_action_that_this_world_enacts_is_poisoned_here() -> None:
    """A new kind without its pair fails this test, and so does one whose failures nobody counts."""
    settings = make_settings("postgresql://", moves="make_before_break", merge_modes="in-turn,together")
    assert policy_config(settings).capabilities == PAIRS.keys()
    assert EFFORTS.keys() == set(ActionKind)


@pytest.mark.parametrize("at_commit", [False, True], ids=["as it is written", "at the commit"])
@pytest.mark.parametrize("kind", PAIRS)
async def test_of_two_actions_the_one_that_fails_is_dropped_and_the_other_is_done(
    world: World, kind: ActionKind, at_commit: bool
) -> None:
    """Nothing of the first is written, all of the second is; also where the first is only found out at the commit."""
    pair = await PAIRS[kind](world)
    await poison(world, pair.table, pair.word, at_commit=at_commit)
    (dropped,) = await _enact(world, *pair.actions)
    assert dropped.action is pair.actions[0]
    assert "poisoned" in str(dropped.error)
    assert [await pair.done(action) for action in pair.actions] == [False, True]
    await world.check_invariants()


async def _failures(world: World) -> dict[tuple[str, str], int]:
    async with world.database.transaction() as connection:
        return {key: one.in_a_row for key, one in (await failures_now(connection)).items()}


async def _decide_in_turn(world: World, times: int) -> None:
    """Decisions, each when what failed may be tried again."""
    for _ in range(times):
        await world.decide()
        world.clock.advance(ms=RESTS_MS[2] + 1)


async def test_a_job_that_fails_to_start_three_times_in_a_row_is_held_and_the_others_start(world: World) -> None:
    """Its events tell each failure, it is paused for an internal error in words that its owner understands, and what
    failed three times is never told with its cause."""
    bad, good = await world.submit(), await world.submit()
    await poison(world, "run_jobs", bad)
    await world.decide()
    assert (await world.job(good)).state == "starting"
    assert (await world.job(bad)).state == "queued"
    assert await _failures(world) == {(bad, "place"): 1}
    world.clock.advance(ms=RESTS_MS[2] + 1)
    await _decide_in_turn(world, HELD_AFTER - 1)
    job = await world.job(bad)
    assert (job.state, job.pause_reason) == ("paused", PauseReason.INTERNAL_ERROR)
    assert "an error of the service, not of the job" in job.wait_reason
    assert (await world.events(bad)).count("action_failed") == HELD_AFTER
    told = [row.message for row in await world.rows(t.job_events) if row.job_id == bad]
    assert not [message for message in told if "poisoned" in message or "run_jobs" in message]
    async with world.database.transaction() as connection:
        counted = {(part.kind, part.name): part.failures for part in await read_health(connection)}
    assert counted["action", "start"] == HELD_AFTER  # type: ignore[index]  # a word is its kind


async def test_a_failure_is_not_tried_again_at_once(world: World) -> None:
    """Until its rest is over nothing is planned for the job, and another decision counts nothing."""
    bad = await world.submit()
    await poison(world, "run_jobs", bad)
    await world.decide()
    await world.decide()
    assert await _failures(world) == {(bad, "place"): 1}
    assert world.control.loop._wake_at_ms == world.clock.now_ms() + RESTS_MS[1]


async def test_failures_in_a_row_outlive_a_restart_and_end_with_a_success(world: World) -> None:
    """Another leader goes on counting; a start that succeeds is the end of the row."""
    bad = await world.submit()
    await poison(world, "run_jobs", bad)
    await _decide_in_turn(world, 2)
    await world.restart()
    assert await _failures(world) == {(bad, "place"): 2}
    await heal(world, "run_jobs")
    await world.decide()
    assert (await world.job(bad)).state == "starting"
    assert await _failures(world) == {}


async def test_a_held_job_that_is_resumed_begins_anew(world: World) -> None:
    """It is placed when what failed works again; if it does not, it is held after three more failures."""
    bad = await world.submit()
    await poison(world, "run_jobs", bad)
    await _decide_in_turn(world, HELD_AFTER)

    async def resume() -> None:
        async with world.database.transaction() as connection:
            await resume_job(connection, world.project_id, bad, now_ms=world.clock.now_ms())

    await resume()
    assert await _failures(world) == {}
    await _decide_in_turn(world, HELD_AFTER)
    assert (await world.job(bad)).state == "paused"
    await heal(world, "run_jobs")
    await resume()
    await world.decide()
    assert (await world.job(bad)).state == "starting"


async def test_what_runs_is_never_stopped_because_something_planned_for_it_fails(world: World) -> None:
    """A run that cannot be demoted runs on; the next try comes later and later, and never not at all."""
    job_id, _node_id = await world.run_on_serverless()
    (run,) = await world.rows(t.runs)
    world.clock.advance(s=world.settings.serverless_budget_s + 1)
    await poison(world, "runs", run.id)
    rests = []
    for _ in range(6):
        await world.beat(_node_id)
        await world.decide()
        async with world.database.transaction() as connection:
            (known,) = (await failures_now(connection)).values()
        rests.append(known.not_before_ms - world.clock.now_ms())
        world.clock.advance(ms=rests[-1])
    assert rests == [RESTS_MS[count] for count in range(1, 7)]
    assert (await world.job(job_id)).state == "running"
    await heal(world, "runs")
    await world.decide()
    assert (await world.job(job_id)).state == "checkpointing"


async def test_a_node_that_cannot_be_released_is_tried_again_for_ever(world: World) -> None:
    """It costs money: the tries get rarer, up to five minutes, and do not end."""
    node_id = await _free_node(world)
    await poison(world, "nodes", node_id)
    for _ in range(10):
        await world.decide()
        world.clock.advance(s=301)
    assert await _failures(world) == {(node_id, "release"): 10}
    await heal(world, "nodes")
    await world.decide()
    assert (await world.node(node_id)).state == "terminating"


async def test_where_everything_fails_nobody_is_held(world: World) -> None:
    """When no job at all can be started, no job is to blame: all of them start by themselves when it works again."""
    jobs = [await world.submit() for _ in range(MOST_HELD + 1)]
    await poison(world, "run_jobs", "job_")
    await _decide_in_turn(world, HELD_AFTER + 1)
    assert {(await world.job(job_id)).state for job_id in jobs} == {"queued"}
    await heal(world, "run_jobs")
    world.clock.advance(s=3_601)
    await world.decide()
    assert {(await world.job(job_id)).state for job_id in jobs} == {"starting"}


async def test_a_job_whose_row_cannot_even_be_told_does_not_harm_the_others(world: World) -> None:
    """Nothing can be written to it, not even that it fails: it rests all the same."""
    bad, good = await world.submit(), await world.submit()
    await poison(world, "jobs", bad)
    await _decide_in_turn(world, HELD_AFTER + 1)
    assert (await world.job(good)).state == "starting"
    assert (await _failures(world))[bad, "place"] >= HELD_AFTER


async def test_resuming_says_the_same_of_a_held_job_as_of_any_other(world: World) -> None:
    """A held job whose cost limit is reached too is not resumed past it."""
    job_id = await world.submit(state="paused", pause_reason="internal_error", max_cost_micros=5, spent_micros=5)
    async with world.database.transaction() as connection:
        with pytest.raises(Conflict, match="max_cost_usd"):
            await resume_job(connection, world.project_id, job_id, now_ms=world.clock.now_ms())


async def test_a_tick_that_cannot_be_stored_does_not_undo_its_plan(world: World) -> None:
    """The job starts; that nothing is on record of the decision is told."""
    job_id = await world.submit()
    await poison(world, "ticks", "fixed-threshold")
    assert await world.decide() is not None
    assert (await world.job(job_id)).state == "starting"
    async with world.database.transaction() as connection:
        (tell,) = [part for part in await read_health(connection) if part.name == "tell"]
    assert tell.failing_since_ms == world.clock.now_ms()


async def test_why_others_wait_is_told_although_one_cannot_be_told(world: World) -> None:
    """Of a thousand reasons that are written together, one that fails is left out."""
    world.cloud.on_offer = []
    bad, good = await world.submit(), await world.submit()
    await poison(world, "jobs", bad)
    await world.decide()
    assert (await world.job(bad)).wait_reason is None
    assert "no provider offers" in (await world.job(good)).wait_reason
