"""Whatever writes two runs of one process may die after any of its statements: nothing of it is left then, and the next
try does it whole. By default it dies after every eighth statement, a lost machine's after every 17th, with `--sweep`
after each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from app.core.model.plan import Start
from app.db import tables as t
from app.db.engine import make_engine
from tests.control.dying import DyingDatabase, KilledError
from tests.control.pairing import Pair
from tests.control.world import World


async def _are_placed(pair: Pair) -> None:
    versions = await pair.lead.versions(pair.lead.job_id)
    await pair.enact(Start(pair.lead.job_id, pair.world.cloud.on_offer[0], "now", versions))


async def _are_demoted(pair: Pair) -> None:
    await pair.demote()


async def _lead_finishes(pair: Pair) -> None:
    await pair.says(pair.lead, "exited", 9, tokens=5, exit_code=0)


async def _lead_fails(pair: Pair) -> None:
    await pair.says(pair.lead, "exited", 9, tokens=5, exit_code=1)


async def _machine_is_lost(pair: Pair) -> None:
    await pair.lead.loses(pair.node_id)


Act = Callable[[Pair], Awaitable[None]]


@pytest.mark.parametrize(
    ("act", "states", "merge"),
    [
        (_are_placed, ("starting", "starting"), "open"),
        (_are_demoted, ("checkpointing", "checkpointing"), "open"),
        (_lead_finishes, ("succeeded", "running"), "ended"),
        (_lead_fails, ("waiting", "running"), "split"),
        (_machine_is_lost, ("waiting", "waiting"), "open"),
    ],
    ids=["placed", "demoted", "lead finishes", "lead fails", "machine lost"],
)
async def test_a_death_after_any_statement_leaves_all_or_nothing(
    world: World, database_url: str, tmp_path: Path, act: Act, states: tuple[str, str], merge: str, sweep: bool
) -> None:
    """Both sides, or neither: never one run of two, or one that stops and one that does not."""
    pair, database = Pair(world, tmp_path), world.database
    if act is _are_placed:
        await pair.merge()
    else:
        await pair.begin()
    stride = 1 if sweep else 17 if act is _machine_is_lost else 8
    before = await pair.states(), await pair.merge_state(), await _live(pair)
    engine = make_engine(database_url, pool_size=2, timeout_s=60)
    try:
        for lifetime in range(1, 400, stride):
            world.database = DyingDatabase(engine, lifetime)
            try:
                await act(pair)
                break
            except KilledError:
                world.database = database
                assert (await pair.states(), await pair.merge_state(), await _live(pair)) == before
                await world.check_invariants()
    finally:
        world.database = database
        await engine.dispose()
    assert lifetime > 16
    assert (await pair.states(), await pair.merge_state()) == (states, merge)
    await world.check_invariants()


async def _live(pair: Pair) -> list[tuple[str, str]]:
    return [(run.id, run.state) for run in await pair.world.rows(t.runs)]
