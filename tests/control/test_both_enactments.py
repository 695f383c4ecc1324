"""The simulator and the service do the same with the same plans, and decide the same on the same world."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from app.control.prices import refresh_offers
from app.core import codec
from app.core.board import Board
from app.core.deciding import decide_apart
from app.core.model.node import Tier
from app.core.model.plan import ActionKind
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named
from app.core.policy import MoveCost, PolicyState
from app.simulator.scenario import Scenario, Task
from tests.control.twin import Happening, Told, Twin
from tests.control.world import World
from tests.simulator.scenarios import config, market, task
from tests.sweeps import swept

# Between them they start, place, move, send back, rent and give back.
POLICIES = ("allpass", "allpass-drain", "hpa", "modal-only")
MOVES = MoveCost(save_ms=5_000, load_ms=3_000)


def played(policy: str, seed: int) -> tuple[Scenario, list[Happening]]:
    """Eight jobs of minutes and hours, on machines some of which fail."""
    chance = random.Random(seed)
    tasks: list[Task] = []
    for number in range(8):
        work_s = chance.choice((90, 400, 1_500, 6_000, 20_000))
        due_s = work_s * chance.choice((1.2, 2, 6)) + 600
        gpus = chance.choice((1, 1, 1, 2))
        tasks.append(task(f"job_{number}", work_s, at_s=number * 200, due_s=due_s, gpus=gpus))
    fleet = market(mean_life_s={Tier.MARKETPLACE: 20_000.0})
    scenario = Scenario(tuple(tasks), fleet, seed, MOVES)
    simulation = Told(scenario, policy_named(policy), config(moves=MOVES, idle_release_ms=60_000))
    simulation.run()
    return scenario, simulation.story


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("policy", POLICIES)
async def test_the_same_plan_has_the_same_effect(world: World, tmp_path: Path, policy: str, seed: int) -> None:
    scenario, story = played(policy, seed)
    twin = Twin(world, tmp_path, scenario.market.offers(0, (1, 2), {}))
    async for one in twin.play(scenario, story):
        assert await twin.now() == one.after, one


@pytest.mark.parametrize("policy", swept(("allpass", "allpass-paper"), ["allpass"]))
async def test_the_same_world_has_the_same_plan(world: World, tmp_path: Path, policy: str) -> None:
    """What the service saw of a whole story, decided as the service does, on a board of its own for each decision, and
    as the simulator does, on one that is kept and changed. Byte for byte the same, and the same is remembered."""
    seen = await snapshots_of(world, tmp_path, policy, seed=1)
    rules, chance = config(moves=MOVES, idle_release_ms=60_000), random.Random(7)
    kept, states = Board(), (PolicyState(), PolicyState())
    actions: set[ActionKind] = set()
    before = Snapshot(0)
    for snapshot in seen:
        decided = decide_apart(policy_named(policy), snapshot, states[0], rules)
        bring(kept, before, snapshot, chance)
        plan, state = policy_named(policy).decide(kept, states[1], rules)
        assert json.dumps(codec.encode(plan)) == json.dumps(codec.encode(decided.plan))
        assert state == decided.state
        actions |= {action.kind for action in plan.actions}
        before, states = snapshot, (decided.state, state)
    assert {ActionKind.PROVISION, ActionKind.RELEASE} <= actions


async def snapshots_of(world: World, folder: Path, policy: str, *, seed: int) -> list[Snapshot]:
    """What the service saw before each thing that happened in a story."""
    scenario, story = played(policy, seed)
    twin = Twin(world, folder, scenario.market.offers(0, (1, 2), {}))
    seen: list[Snapshot] = []
    async for one in twin.play(scenario, story):
        await refresh_offers(world.control.context)
        seen.append(await twin.snapshot())
        assert one.at_ms == world.clock.ms - twin.began_ms
    return seen


def bring(board: Board, before: Snapshot, after: Snapshot, chance: random.Random) -> None:
    """What changed between two moments, in any order, as a simulation changes its board."""
    board.now_ms = after.now_ms
    board.set_offers(after.offers, after.traits, after.closed, after.images)
    changes: list[Callable[[], None]] = []
    for job in set(after.jobs) - set(before.jobs):
        changes.append(partial(board.put_job, job))
    for run in set(after.runs) - set(before.runs):
        changes.append(partial(board.put_run, run))
    for node in set(after.nodes) - set(before.nodes):
        changes.append(partial(board.put_node, node))
    changes += [
        partial(board.drop_run, key) for key in {r.run_id for r in before.runs} - {r.run_id for r in after.runs}
    ]
    chance.shuffle(changes)
    for change in changes:
        change()
    for job_id in {job.job_id for job in before.jobs} - {job.job_id for job in after.jobs}:
        board.drop_job(job_id)
    for node_id in {node.node_id for node in before.nodes} - {node.node_id for node in after.nodes}:
        board.drop_node(node_id)
